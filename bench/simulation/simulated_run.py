"""The figures of a simulated run, computed from its request log."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...engines.mocker import parse_speeds
from ..results import Run, Summary, summarise, summarise_weighted
from .bounds import HitRateBounds, idle_engine_ms
from .config import SimulationConfig
from .prepared_trace import SimulatedTrace
from .request_log import FAILED, REJECTED, RequestLog


@dataclass(frozen=True)
class SimulatedRun(Run):
    """A Run, with what only a simulation can know. Times are virtual.

    `goodput_share` is the absolute one of `goodput`, `goodput_rps` the requests behind it a second;
    `engine_s_per_1000_good` are seconds of all engines for a thousand requests that are good by the
    relative objective. `capacity` is the highest rate, in requests a second, at which enough are,
    if it was looked for. `alone_ms` is the mean TTFT if every prompt had its engine for itself,
    idle, with the blocks in its cache that it found there. Requests waiting are those an engine has
    not admitted: per engine, their mean over the whole run and the most at any time. Queued are
    those that waited in the router before that, how long they did, and the most at a time.
    `remote_prefill_share` is the share of served requests whose prompt a prefill worker computed;
    `handoff_ms` are from the end of that to the first token, `transfer_ms` the transfer's part.
    """

    hit_rate_pooled_lru: float = 0.0
    hit_rate_infinite: float = 0.0
    hit_rate_vs_pooled_lru: float | None = None
    hit_rate_vs_infinite: float | None = None
    alone_ms: float | None = None
    goodput_share: float = 0.0
    goodput_rps: float = 0.0
    engine_s_per_1000_good: float | None = None
    capacity: float | None = None
    waiting_mean: float = 0.0
    waiting_max: int = 0
    queued: int = 0
    queued_ms: Summary = Summary()
    queue_max: int = 0
    preemptions: int = 0
    remote_prefill_share: float = 0.0
    handoff_ms: Summary = Summary()
    transfer_ms: Summary = Summary()


def summarise_run(
    log: RequestLog,
    trace: SimulatedTrace,
    bounds: HitRateBounds,
    config: SimulationConfig,
    *,
    mode: str,
    policy: str,
    workers: int,
    seed: int,
    details: Mapping[str, Any],
) -> SimulatedRun:
    """The run's figures; latencies are those of the requests that were served."""
    served = log.served
    prompt = np.array([request.input_length for request in trace.requests], np.int64)
    output = np.array([trace.output_tokens(place) for place in range(len(trace))], np.int64)
    ttft = (log.first_s - log.arrival_s)[served] * 1e3
    e2e = (log.last_s - log.arrival_s)[served] * 1e3
    between = np.maximum(1, output[served] - 1)
    own_itl = (log.last_s - log.first_s)[served] * 1e3 / between
    engine = config.engine_config()
    goodput = config.objectives.goodput(
        len(trace), ttft_ms=ttft, itl_ms=own_itl, cold_ms=idle_engine_ms(engine, prompt[served])
    )
    absolute, relative = goodput.absolute or 0.0, goodput.relative or 0.0
    speeds = np.array(parse_speeds(config.worker_speeds))
    alone = idle_engine_ms(engine, prompt[served], log.cached_tokens[served])
    alone /= speeds[log.worker[served] % len(speeds)]
    by_worker = np.bincount(log.worker[served], prompt[served], minlength=workers)
    share = _ratio(log.cached_tokens[served].sum(), prompt[served].sum())
    gaps, counts = log.gaps
    remote = served & log.remote if log.remote is not None else np.zeros(len(trace), np.bool_)
    none = np.zeros(0)
    handed = remote if log.handoff_s is None else remote & np.isfinite(log.handoff_s)
    engine_seconds = log.end_s * len(log.engines)
    return SimulatedRun(
        mode=mode,
        policy=policy,
        workers=workers,
        seed=seed,
        requests=len(trace),
        errors=int((log.status == FAILED).sum()),
        rejected=int((log.status == REJECTED).sum()),
        cached_token_share=share,
        ttft_ms=summarise(ttft),
        itl_ms=_milliseconds(summarise_weighted(gaps, counts)),
        e2e_ms=summarise(e2e),
        output_tokens_per_s=_ratio(output[served].sum(), log.end_s),
        balance_max_over_mean=_ratio(by_worker.max(), by_worker.mean()),
        wall_s=log.end_s,
        hit_rate_pooled_lru=bounds.pooled_lru,
        hit_rate_infinite=bounds.infinite,
        hit_rate_vs_pooled_lru=None if share is None else _ratio(share, bounds.pooled_lru),
        hit_rate_vs_infinite=None if share is None else _ratio(share, bounds.infinite),
        alone_ms=float(alone.mean()) if served.any() else None,
        goodput=goodput,
        goodput_share=absolute,
        goodput_rps=_ratio(absolute * len(trace), log.end_s) or 0.0,
        engine_s_per_1000_good=_ratio(1000 * engine_seconds, relative * len(trace)),
        waiting_mean=_ratio(sum(e.waited_s for e in log.engines), engine_seconds) or 0.0,
        waiting_max=max(each.most_waiting for each in log.engines),
        queued=int((log.queued_s > 0).sum()),
        queued_ms=summarise(log.queued_s[log.queued_s > 0] * 1e3),
        queue_max=log.queue_max,
        preemptions=int(log.preemptions.sum()),
        remote_prefill_share=_ratio(remote.sum(), served.sum()) or 0.0,
        handoff_ms=summarise(none if log.handoff_s is None else log.handoff_s[handed] * 1e3),
        transfer_ms=summarise(none if log.transfer_s is None else log.transfer_s[handed] * 1e3),
        details={
            **details,
            "first_failure": log.first_failure or None,
            "input_tokens": int(prompt[served].sum()),
            "output_tokens": int(output[served].sum()),
            "cached_tokens": int(log.cached_tokens[served].sum()),
            "input_tokens_by_worker": by_worker.astype(int).tolist() if workers <= 64 else None,
            "engine_steps": sum(each.steps for each in log.engines),
            "engine_busy_share": _ratio(sum(e.busy_s for e in log.engines), engine_seconds),
            "lost_event_messages": log.lost_messages,
            "cache_announcements": log.announcements,
        },
    )


def _milliseconds(seconds: Summary) -> Summary:
    if seconds.mean is None:
        return seconds
    return Summary(*(value * 1e3 for value in asdict(seconds).values()))


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole > 0 else None
