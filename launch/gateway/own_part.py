"""From one gateway's history to its part of what `GET /status` tells. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from common.ids import InstanceId
from common.moments import Moment
from launch.gateway.figures import sampled
from launch.gateway.history import WINDOW_S, History, Outcome, Record
from launch.gateway.parts import BESIDE_S, Judged, Part
from launch.gateway.status import RequestStatus

_MOST_VALUES = 1000  # of a window's: percentiles of more are off by a 2000th of the ranks


def part_of(history: History, in_progress: int, now: float, after: float) -> Part:
    """`in_progress`: HTTP requests; `now`: by the history's clock; `after`: Unix time, of
    points that are wanted: those a little before it are told, too, to be laid beside others'."""
    first, last = history.window()
    since = now - WINDOW_S
    outcomes = [one for one in history.outcomes if one.ended >= since]
    slo, slo_ttft, slo_tpot = judged(outcomes)
    return Part(
        uptime_s=now - history.began,
        window_s=last.at - first.at,
        in_progress=in_progress,
        ttft_s=sampled((one.ttft_s for one in outcomes), _MOST_VALUES),
        tpot_s=sampled((one.tpot_s for one in outcomes), _MOST_VALUES),
        e2e_s=sampled((one.e2e_s for one in outcomes), _MOST_VALUES),
        handoff_s=sampled(
            (seconds for at, seconds in history.handoffs if at >= since), _MOST_VALUES
        ),
        slo=slo,
        slo_ttft=slo_ttft,
        slo_tpot=slo_tpot,
        first=first.totals,
        last=last.totals,
        requests=[
            request_status(record, history.names)
            for record in chain(reversed(history.live.values()), history.ended())
        ],
        series=[one for one in history.series if one.unix_s > after - BESIDE_S],
    )


def judged(outcomes: Iterable[Outcome]) -> tuple[Judged, Judged, Judged]:
    """By all that each was owed, by its TTFT, by its TPOT."""
    both: list[bool] = []
    ttfts: list[bool] = []
    tpots: list[bool] = []
    for one in outcomes:
        ttft, tpot = _met(one.ttft_s, one.slo.ttft_s), _met(one.tpot_s, one.slo.tpot_s)
        stated = [met for met in (ttft, tpot) if met is not None]
        ttfts += [] if ttft is None else [ttft]
        tpots += [] if tpot is None else [tpot]
        both += [all(stated)] if stated else []
    return _counted(both), _counted(ttfts), _counted(tpots)


def _met(took_s: float | None, owed_s: float | None) -> bool | None:
    """None: nothing was owed, or there was nothing to judge (one token has no TPOT)."""
    return None if took_s is None or owed_s is None else took_s <= owed_s


def _counted(met: Sequence[bool]) -> Judged:
    return Judged(len(met), sum(met))


def request_status(record: Record, names: Mapping[InstanceId, str]) -> RequestStatus:
    """`names`: of workers, those that are gone included."""

    def after(at: float | None) -> float | None:
        if at is None:
            return None
        if record.ended is not None:  # before a worker, whose clock is its own, had told
            at = min(at, record.ended)
        return max(0.0, at - record.arrived)

    computing = record.decode if record.prefill is None else record.prefill
    at_computing = record.at_decode if record.prefill is None else record.at_prefill
    return RequestStatus(
        id=record.request,
        state=record.ending or stage_of(record),
        arrived_unix_s=record.arrived_unix,
        prompt_tokens=record.prompt_tokens,
        max_tokens=record.max_tokens,
        n=record.n,
        output_tokens=record.output_tokens,
        attempts=record.attempts,
        preemptions=record.preemptions,
        decision=record.decision,
        reason=record.reason,
        prefill=_name(computing, names),
        decode=_name(record.decode, names),
        routed_s=after(record.routed),
        prefill_began_s=after(at_computing.get(Moment.CONTEXT_BEGIN)),
        first_token_s=after(record.first_token),
        transfer_began_s=after(record.at_decode.get(Moment.MIGRATION_BEGIN)),
        transfer_ended_s=after(record.at_decode.get(Moment.MIGRATION_END)),
        decode_began_s=after(record.at_decode.get(Moment.DECODING_BEGIN)),
        ended_s=after(record.ended),
        tpot_s=record.tpot_s,
        detail=record.detail,
    )


def _name(worker: InstanceId | None, names: Mapping[InstanceId, str]) -> str | None:
    return None if worker is None else names.get(worker, worker)


def stage_of(record: Record) -> str:
    """Where a request is that has not ended, as far as workers have told."""
    if Moment.DECODING_BEGIN in record.at_decode:
        return "decode"
    if record.first_token is not None:
        return "decode" if record.prefill is None else "transfer"
    computing = record.at_decode if record.prefill is None else record.at_prefill
    return "prefill" if Moment.CONTEXT_BEGIN in computing else "queued"
