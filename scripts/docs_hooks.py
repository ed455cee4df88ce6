"""The site's pages that lie outside docs/: their links, and links to them, made the site's own.

Loaded by mkdocs (`hooks:` in mkdocs.yml). Must write no file.
"""

import re
from pathlib import Path

# `make docs` installs it; checks of types do without.
# pyright: reportMissingImports=false
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

HOME = Path(__file__).parent.parent
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
_DOWN = re.compile(r"(\]\()docs/")  # from the root into docs/
_UP = re.compile(rf"(\]\()\.\./({'|'.join(map(re.escape, PAGES))})")  # and from there to the root


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the pages that `nav` has forgotten."""
    pages = {page.name for page in (HOME / "docs").glob("*.md")}
    forgotten = sorted(page for page in pages if f"'{page}'" not in str(config.nav))
    if forgotten and config.nav is not None:
        config.nav.append({"More": forgotten})
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    for name in PAGES:
        text = _DOWN.sub(r"\1", (HOME / name).read_text("utf-8"))
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Leads links to them where they are on the site."""
    return _UP.sub(r"\1\2", markdown)
