"""What `baton bench serve` makes of refusals, and of what is served."""

import json
from argparse import Namespace

import pytest

from bench.client import Outcome, said
from bench.serve import NotServed, is_refused_for_a_target, main, model_told
from bench.stub import started
from common.errors import SloHopeless, SloMissed, TpotHopeless, TpotMissed


def outcome(error: str, message: str) -> Outcome:
    return Outcome(index=0, scheduled_s=0, sent_s=0, error=error, message=message)


@pytest.mark.parametrize(
    "refusal",
    [
        SloMissed(0.2, 1.5, retry_after_s=1.0),
        SloHopeless(0.2, 1.5),
        TpotMissed(0.03, 0.05, retry_after_s=1.0),
        TpotHopeless(0.001, 0.05),
    ],
)
def test_a_refusal_for_a_target_is_seen_as_such(refusal: Exception) -> None:
    assert is_refused_for_a_target([outcome("", ""), outcome("http_429", said(str(refusal)))])


def test_other_refusals_are_not() -> None:
    others = [outcome("http_429", "the queue is full"), outcome("http_503", "--slo-ttft")]
    assert not is_refused_for_a_target(others)


MODELS = '{"data": [{"id": "a", "max_model_len": 5}, {"id": "b"}]}'


def test_a_server_that_asks_for_a_key_is_told_by_the_flag() -> None:
    with pytest.raises(
        NotServed, match=r"^http://s asks for a key: --api-key KEY, or the variable"
    ):
        model_told(Namespace(base_url="http://s", model=None), 401, '{"error": {}}')


def test_a_model_that_is_not_served_is_refused_with_those_that_are() -> None:
    options = Namespace(base_url="http://s", model="c")
    with pytest.raises(NotServed, match=r"^--model c is not served at http://s: there is a, b$"):
        model_told(options, 200, MODELS)
    assert model_told(Namespace(base_url="", model="b"), 200, MODELS) == {"id": "b"}
    assert model_told(Namespace(base_url="", model=None), 200, MODELS)["max_model_len"] == 5
    for listed in ("*", "c*", "[abc]"):  # a proxy that passes on what it is asked for
        told = json.dumps({"data": [{"id": "a"}, {"id": listed}]})
        assert model_told(options, 200, told) == {"id": "c"}
    assert model_told(options, 404, "not found") == {"id": "c"}  # whoever tells no models


def test_a_model_that_is_not_listed_is_measured_if_it_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--num-prompts", "2", "--input-len", "4", "--output-len", "2", "--disable-tqdm")
    with started() as url:
        for check in ("0", "5"):
            asked = ("--base-url", url, "--model", "other", "--ready-check-timeout-sec", check)
            assert main([*asked, *flags]) == 0
            told = capsys.readouterr()
            assert (
                f"warning: --model other is not served at {url}: there is stub; it ans" in told.err
            )
            (result,) = json.loads(told.out.splitlines()[-1])["results"]
            assert (result["completed"], result["model_id"]) == (2, "other")
        refusing = json.dumps({"stub": {"status": 404}})
        asked = ("--base-url", url, "--model", "other", "--extra-body", refusing)
        assert main([*asked, *flags]) == 1
        assert capsys.readouterr().err.startswith("error: --model other is not served at")
