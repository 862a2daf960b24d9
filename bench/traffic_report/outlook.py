"""What other policies, fleets and caches would have given: the busiest part of a record simulated.

The simulated engines are as fast as makes the recorded policy's answers take as long as they took.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from ...base.errors import ConfigError
from ...router.config import DYNAMO, FORECAST
from ..results import STUDENT_T, ObjectiveConfig, ratio_interval
from ..simulation import Experiment, Load, SimulatedRun, SimulationConfig
from ..traces import Record, RecordedRequest, TraceRequest, encode_request
from .routing import SERVED, FleetFacts, of

USUAL_BLOCKS, USUAL_BATCH = 16384, 8192
"""Of an engine that does not say."""
POLICIES = ("kv", f"{DYNAMO}:1", "least-loaded", "round-robin")
FITS, CLOSE = 8, 0.03
"""How often the engines' speed is fitted at most, and how close is close enough."""
SLOWEST, FASTEST = 0.01, 100.0
FAR_APART = 0.25
MEMORY_SHARES = (0.5, 2.0, 4.0)

OnRun = Callable[[str], None]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its 95 % interval (Student's t), which is open for one seed."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Change:
    """One fleet and policy, simulated. Ratios are to the first one, over the same seeds.

    `goodput` is the share of requests within the record's usual objectives.
    """

    name: str
    kind: str
    """policy, workers or memory"""
    setting: str
    """what to set for it"""
    ttft_ms: Estimate
    e2e_ms: Estimate
    itl_ms: Estimate
    cached_share: Estimate
    goodput: Estimate
    ttft_ratio: Estimate
    e2e_ratio: Estimate


@dataclass(frozen=True)
class Outlook:
    """The changes, the recorded fleet first, and how near the simulation comes to the record.

    `recorded` and `simulated` have mean ttft_ms, itl_ms, e2e_ms and cached_share of the same
    requests.
    """

    requests: int
    first_ms: float
    span_s: float
    workers: int
    blocks: int
    speed: float
    policy: str
    objectives: tuple[float, float]
    recorded: dict[str, float | None]
    simulated: dict[str, float | None]
    seeds: int
    changes: list[Change] = field(default_factory=list)

    @property
    def far_apart(self) -> list[str]:
        """Figures of which the recorded and the simulated one are more than FAR_APART apart."""
        return [
            name
            for name, real in self.recorded.items()
            if real
            and (found := self.simulated.get(name))
            and max(real / found, found / real) > 1 + FAR_APART
        ]

    @property
    def base(self) -> Change:
        return self.changes[0]

    def of_kind(self, kind: str) -> list[Change]:
        """The recorded fleet and the changes of this kind."""
        return [self.base, *(each for each in self.changes[1:] if each.kind == kind)]


@dataclass(frozen=True)
class OutlookSettings:
    """What is simulated. None: as the record says."""

    requests: int = 2000
    seeds: int = 3
    workers: int | None = None
    num_gpu_blocks: int | None = None
    planner_profile_data: str | None = None
    policies: Sequence[str] = POLICIES


def percent_change(ratio: float) -> str:
    """A ratio as what is more or less: +5%, 0%."""
    percent = round((ratio - 1) * 100)
    return f"{percent:+d}%" if percent else "0%"


def busiest(requests: Sequence[RecordedRequest], most: int) -> Sequence[RecordedRequest]:
    """The `most` consecutive requests that came in the shortest time; all, if they are fewer."""
    if len(requests) <= most:
        return requests
    times = np.array([each.timestamp_ms for each in requests])
    first = int(np.argmin(times[most - 1 :] - times[: len(times) - most + 1]))
    return requests[first : first + most]


def other_counts(workers: int) -> list[int]:
    """Sizes of a fleet a quarter smaller and larger, and half as large again; other ones."""
    found = [math.floor(workers * 0.75), math.ceil(workers * 1.25), math.ceil(workers * 1.5)]
    return [count for count in dict.fromkeys(found) if count not in (0, workers)]


def look_ahead(
    record: Record, fleet: FleetFacts, settings: OutlookSettings, on_run: OnRun = lambda text: None
) -> Outlook:
    """Simulate all changes. `on_run` gets a line before each of them."""
    part = busiest(record.requests, settings.requests)
    workers = settings.workers or fleet.workers
    blocks = settings.num_gpu_blocks or fleet.blocks or USUAL_BLOCKS
    objectives = _objectives(part)
    policy = policy_of(record.header.policy)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "busiest.jsonl"
        trace.write_bytes(b"".join(map(_plain_line, part)))
        bench = _Bench(
            trace=str(trace),
            trace_block_size=record.header.block_size,
            fleet=fleet,
            recorded_blocks=blocks,
            objectives=objectives,
            profile=settings.planner_profile_data,
            seeds=settings.seeds,
            on_run=on_run,
        )
        speed = bench.fit(policy, workers, blocks, _recorded(part)["e2e_ms"])
        base = bench.runs(policy, workers, blocks)
        changes = [_change("as recorded", "base", "", base, base)]
        for name in settings.policies:
            if name == policy:
                continue
            runs = bench.runs(name, workers, blocks)
            changes.append(_change(_shown(name), "policy", _policy_setting(name), runs, base))
        for count in other_counts(workers):
            runs, word = bench.runs(policy, count, blocks), "worker" if count == 1 else "workers"
            changes.append(_change(f"{count} {word}", "workers", f"{count} {word}", runs, base))
        for share in MEMORY_SHARES:
            runs = bench.runs(policy, workers, max(1, round(blocks * share)))
            tokens = round(blocks * share) * fleet.block_size
            setting = f"caches of {tokens:,} tokens an engine"
            changes.append(_change(f"{share:g} x the cache", "memory", setting, runs, base))
    simulated: dict[str, float | None] = {
        "ttft_ms": changes[0].ttft_ms.mean,
        "itl_ms": changes[0].itl_ms.mean,
        "e2e_ms": changes[0].e2e_ms.mean,
        "cached_share": changes[0].cached_share.mean,
    }
    times = [each.timestamp_ms for each in part]
    return Outlook(
        len(part),
        float(times[0]),
        float(times[-1] - times[0]) / 1e3,
        workers,
        blocks,
        speed,
        policy,
        objectives,
        _recorded(part),
        simulated,
        settings.seeds,
        changes,
    )


class _Bench:
    """Runs of one part of a record, with engines of one speed."""

    def __init__(
        self,
        *,
        trace: str,
        trace_block_size: int,
        fleet: FleetFacts,
        recorded_blocks: int,
        objectives: tuple[float, float],
        profile: str | None,
        seeds: int,
        on_run: OnRun,
    ) -> None:
        self._load = Load(trace=trace, trace_block_size=trace_block_size)
        self._fleet, self._objectives, self._profile = fleet, objectives, profile
        self._recorded_blocks = recorded_blocks  # a GPU's step does not depend on what is free
        self._seeds, self._on_run, self.speed = seeds, on_run, 1.0

    def fit(self, policy: str, workers: int, blocks: int, e2e_ms: float | None) -> float:
        """Have the engines a speed at which answers take as long as they took, in the mean."""
        best = (float("inf"), self.speed)
        for _ in range(FITS if e2e_ms else 0):
            found = self._runs(policy, workers, blocks, 1)[0].e2e_ms.mean
            if not found or not e2e_ms:
                break
            best = min(best, (abs(found / e2e_ms - 1), self.speed))
            if best[0] <= CLOSE:
                break
            self.speed = min(FASTEST, max(SLOWEST, self.speed * found / e2e_ms))
        self.speed = best[1]
        return self.speed

    def runs(self, policy: str, workers: int, blocks: int) -> list[SimulatedRun]:
        return self._runs(policy, workers, blocks, self._seeds)

    def _runs(self, policy: str, workers: int, blocks: int, seeds: int) -> list[SimulatedRun]:
        self._on_run(f"{policy}, {workers} workers, {blocks} blocks, speed {self.speed:.3g}")
        ttft_ms, itl_ms = self._objectives
        config = SimulationConfig(
            block_size=self._fleet.block_size,
            num_gpu_blocks=blocks,
            decode_scale_tokens=self._recorded_blocks * self._fleet.block_size,
            max_num_batched_tokens=self._fleet.batched_tokens or USUAL_BATCH,
            worker_speeds=f"{self.speed:.6g}",
            planner_profile_data=self._profile,
            objectives=ObjectiveConfig(slo_ttft_ms=ttft_ms, slo_itl_ms=itl_ms),
        )
        experiment = Experiment(config, self._load, workers)
        (variant,) = experiment.variants(policy)
        return [experiment.run(variant, seed).run for seed in range(seeds)]


def policy_of(recorded: str) -> str:
    """The policy of a record by the name that simulations have for it."""
    if recorded in ("", FORECAST):
        return "kv"
    return recorded


def _policy_setting(name: str) -> str:
    kind, _, scale = name.partition(":")
    if name == "kv":
        return f"--policy {FORECAST}"
    return f"--policy {DYNAMO} --prefill-load-scale {scale}" if kind == DYNAMO else f"--mode {name}"


def _shown(name: str) -> str:
    return FORECAST if name == "kv" else name


def _plain_line(request: RecordedRequest) -> bytes:
    """As a trace has it, for engines that know no record."""
    return encode_request(
        TraceRequest(
            request.timestamp_ms,
            request.input_length,
            request.output_length,
            request.hash_ids,
            request.tenant,
        )
    )


def _objectives(requests: Sequence[RecordedRequest]) -> tuple[float, float]:
    """The medians of TTFT and ITL objectives, or the usual ones."""
    usual = ObjectiveConfig()
    ttft, itl = of(requests, "ttft_objective_ms"), of(requests, "itl_objective_ms")
    return (
        float(np.median(ttft)) if len(ttft) else usual.slo_ttft_ms,
        float(np.median(itl)) if len(itl) else usual.slo_itl_ms,
    )


def _recorded(requests: Sequence[RecordedRequest]) -> dict[str, float | None]:
    served = [each for each in requests if each.status == SERVED]
    found: dict[str, float | None] = {}
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        values = of(served, name)
        found[name] = float(values.mean()) if len(values) else None
    prompt = sum(each.input_length for each in served)
    cached = of(served, "cached_tokens")
    found["cached_share"] = float(cached.sum()) / prompt if prompt and len(cached) else None
    return found


def _change(
    name: str, kind: str, setting: str, runs: Sequence[SimulatedRun], base: Sequence[SimulatedRun]
) -> Change:
    return Change(
        name,
        kind,
        setting,
        _estimate([run.ttft_ms.mean or 0.0 for run in runs]),
        _estimate([run.e2e_ms.mean or 0.0 for run in runs]),
        _estimate([run.itl_ms.mean or 0.0 for run in runs]),
        _estimate([run.cached_token_share or 0.0 for run in runs]),
        _estimate([run.goodput_share for run in runs]),
        _ratio(*([run.ttft_ms.mean or 0.0 for run in each] for each in (runs, base))),
        _ratio(*([run.e2e_ms.mean or 0.0 for run in each] for each in (runs, base))),
    )


def _estimate(values: Sequence[float]) -> Estimate:
    middle = mean(values)
    if len(values) < 2:
        return Estimate(middle)
    quantile = STUDENT_T[min(len(values) - 1, len(STUDENT_T)) - 1]
    reach = quantile * stdev(values) / len(values) ** 0.5
    return Estimate(middle, middle - reach, middle + reach)


def _ratio(values: Sequence[float], base: Sequence[float]) -> Estimate:
    if not (mean(values) > 0 and mean(base) > 0):
        return Estimate(1.0)
    ratio, low, high = ratio_interval(values, base)
    return Estimate(ratio, low, high) if len(values) > 1 else Estimate(ratio)


def check_policies(names: Sequence[str]) -> None:
    """ConfigError for a name that no simulation knows."""
    from ..simulation import parse_policies

    if not names:
        raise ConfigError("policies: at least one is needed", key="policies")
    parse_policies(",".join(names), block_size=64, trace_block_size=64)
