"""What the table of `baton profile` says of costs that it could not see, and of poor fits."""

from msgspec.structs import replace

from bench.profile_fit import LEAST_S, UNSEEN_BYTES_PER_S
from bench.profile_report import poor_fits, table
from bench.simulate.costs_file import CostsFile, DecodeFields, PrefillFields, TransferFields
from tests.unit.bench.simulate.devices import DEVICE

FITTED: dict[str, str | float] = {
    "budget_tokens": 512,
    "prefill_error_median": 0.1,
    "decode_error_median": 0.02,
    "prefill_slowdown": 1.0,
    "decode_slowdown": 1.25,
}
SEEN = replace(DEVICE, measured=FITTED)


def rows(file: CostsFile) -> dict[str, str]:
    return {line[:38].strip(): line[38:].strip() for line in table(file).splitlines()}


def test_what_was_seen_is_told_in_units_that_fit() -> None:
    told = rows(SEEN)
    assert told["prefill, a pass"] == "2 ms"
    assert told["prefill, a token"] == "400 us"
    assert told["transfer, bandwidth"] == "10 GB/s"
    assert told["decode takes longer beside prefill by"] == "1.25 x"
    assert "not measurable" not in told.values()


def test_the_bound_of_a_fit_is_no_measurement() -> None:
    unseen = replace(
        SEEN,
        prefill=PrefillFields(fixed_s=0, per_token_s=LEAST_S / 512, per_pair_s=0),
        decode=DecodeFields(fixed_s=LEAST_S, per_context_token_s=0, per_sequence_s=0),
        transfer=TransferFields(latency_s=0, bytes_per_s=1 / (1 / UNSEEN_BYTES_PER_S)),
        request_s=0,
        token_s=0,
    )
    told = rows(unseen)
    costs = {name: value for name, value in told.items() if not value.endswith(("%", "x"))}
    assert len(costs) == 10
    assert set(costs.values()) == {"not measurable"}


def test_a_poor_fit_is_told_with_its_remedy() -> None:
    assert poor_fits(SEEN) == []
    worse: dict[str, str | float] = FITTED | {"prefill_error_median": 0.34}
    assert poor_fits(replace(SEEN, measured=worse)) == [
        "the fit of prefill is poor: its median error is 34 %, over 10 %; the machine was busy: "
        "run it again, with --rounds 3"
    ]
