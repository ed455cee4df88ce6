"""Where a plan's costs come from: a file, or a set that is published, by its name."""

from dataclasses import asdict
from pathlib import Path

from bench import reasons
from bench.simulate import costs_file, published
from bench.simulate.costs_file import CostsFile, DecodeFields, PrefillFields, TransferFields

OPT_13B = "opt-13b"  # on one A100 of 80 GB, pages over NVLink


def load(place: str) -> CostsFile:
    """Raises ValueError with the flag, or the field and what it must be."""
    if place == OPT_13B:
        return _opt_13b()
    try:
        reasons.must_be_readable("--costs", Path(place))
    except ValueError as error:
        raise ValueError(
            f"{error}; `baton profile` writes one, and {OPT_13B} is a published set"
        ) from None
    return costs_file.read(Path(place))


def _opt_13b() -> CostsFile:
    model, device = published.OPT_13B, published.A100_80G
    costs = published.costs_of(model, device)
    return CostsFile(
        model=model.name,
        device=device.name,
        dtype="float16",
        threads=0,
        page_tokens=published.PAGE_TOKENS,
        page_bytes=costs.page_bytes,
        n_pages=published.n_pages(model, device),
        prefill=PrefillFields(**asdict(costs.prefill)),
        decode=DecodeFields(**asdict(costs.decode)),
        transfer=TransferFields(**asdict(costs.transfer)),
        request_s=0.0,
        token_s=0.0,
        measured={"source": "public figures, as DistServe (arXiv 2401.09670) has them"},
    )
