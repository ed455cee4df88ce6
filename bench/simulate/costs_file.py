"""What operations cost on one kind of device, as JSON that `baton profile` writes and `baton plan`
reads. The fields are those of `bench.simulate.costs`, with what a plan must know beside them.

Nothing here measures or fits.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from bench.simulate.costs import Costs, DecodeCosts, PrefillCosts, TransferCosts

APART = "prefill and decode apart"  # `CostsFile.measured["pools"]`
NotNegative = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class PrefillFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `PrefillCosts`."""

    fixed_s: NotNegative
    per_token_s: Positive  # a device that computes prompts in no time is planned to no end
    per_pair_s: NotNegative


class DecodeFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `DecodeCosts`."""

    fixed_s: Positive
    per_context_token_s: NotNegative
    per_sequence_s: NotNegative


class TransferFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `TransferCosts`."""

    latency_s: NotNegative
    bytes_per_s: Positive


class CostsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one worker on one device. Seconds, bytes, tokens."""

    model: str
    device: str
    dtype: str
    threads: Annotated[int, Meta(ge=0)]  # of the worker; 0: they say nothing, as on a GPU
    page_tokens: Count
    page_bytes: Count
    n_pages: Count  # of the worker's pool
    prefill: PrefillFields
    decode: DecodeFields
    transfer: TransferFields
    request_s: NotNegative  # from a client to the gateway's core: HTTP, text made tokens
    token_s: NotNegative  # from the gateway's core to the client; hops between processes are apart
    measured: dict[str, str | float] = {}  # of the fit and its errors, for a reader

    @property
    def costs(self) -> Costs:
        """As the simulator takes them."""
        return Costs(
            prefill=PrefillCosts(**msgspec.structs.asdict(self.prefill)),
            decode=DecodeCosts(**msgspec.structs.asdict(self.decode)),
            transfer=TransferCosts(**msgspec.structs.asdict(self.transfer)),
            page_bytes=self.page_bytes,
        )


def read(path: Path) -> CostsFile:
    """Raises OSError, or ValueError with the field and what it must be."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CostsFile)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}; `baton profile` writes such files") from None


def write(path: Path, costs: CostsFile) -> None:
    """Raises ValueError, before anything is written, where `read` would refuse it."""
    made = msgspec.json.format(msgspec.json.encode(costs), indent=2)
    try:
        msgspec.json.decode(made, type=CostsFile)
    except msgspec.DecodeError as error:
        raise ValueError(f"costs that cannot be: {error}") from None
    path.write_bytes(made + b"\n")
