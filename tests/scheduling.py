"""Which tests the processes of `make test` take together. Needs pytest-xdist."""

from xdist.scheduler import LoadScopeScheduling

_WITH_SERVERS = ("tests/system/", "tests/clients/")


class Together(LoadScopeScheduling):
    """Tests that start servers share them, and the cores; so they follow each other in one
    process. The others of one file stay together, for what its fixtures cost."""

    def _split_scope(self, nodeid: str) -> str:
        return "servers" if nodeid.startswith(_WITH_SERVERS) else nodeid.partition("::")[0]
