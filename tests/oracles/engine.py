"""A mock engine in plain Python, tokens and all: what the native core is held against."""

from bisect import bisect_right
from collections.abc import Sequence as Row
from dataclasses import dataclass

from oracles.kv_manager import KvManager
from oracles.scheduler import Job, Scheduler

from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.sequence import Sequence
from dynamo_router.engines.serving.kv_events import KvEvent
from dynamo_router.engines.serving.request import EngineRequest


@dataclass(frozen=True)
class OracleStep:
    """What MockEngine.step tells."""

    duration_s: float
    outputs: list[Job]
    events: list[KvEvent]
    prefill_tokens: int
    preempted: int


class OracleMockEngine:
    """One engine; a request that it could never run is not for it."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.kv = KvManager(config.num_gpu_blocks, config.tiers, config.block_size)
        self.scheduler = Scheduler(config, self.kv)
        self._jobs: dict[str, Job] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._jobs)

    def submit(self, request: EngineRequest) -> Sequence:
        config = self.config
        sequence = Sequence(request, config)
        job = Job(sequence, config.block_size)
        job.retention = request.retention_spans(config.block_size)
        self._jobs[request.request_id] = job
        self.scheduler.waiting.append(job)
        return sequence

    def prefetch(self, request: EngineRequest, now: float) -> tuple[int, list[KvEvent]]:
        """Load what lower tiers have of a prompt that is expected: (blocks, what changed)."""
        config = self.config
        sequence = Sequence(request, config)
        job = Job(sequence, config.block_size)
        loaded = self.kv.prefetch(job, sequence.prompt_len // config.block_size, now)
        return loaded, self.kv.take_events()

    def abort(self, request_id: str) -> None:
        self.scheduler.remove(self._jobs.pop(request_id))

    def step(self, now: float = 0.0, speed: float = 1.0) -> OracleStep:
        """The step that begins at `now`, on an engine of that speed."""
        if not self._jobs:
            return OracleStep(0.0, [], [], 0, 0)
        self.kv.pass_time(now)
        plan = self.scheduler.schedule()
        timing = self.config.timing
        milliseconds = timing.prefill_ms(plan.prefill_tokens)
        milliseconds += self.config.attention_us_per_ktoken2 * 1e-9 * plan.twice_attended / 2
        milliseconds += timing.decode_ms(plan.decode_tokens, len(plan.decodes))
        outputs = [job for job in self.scheduler.running if job.computed == job.known]
        for job in outputs:
            job.generated += 1
            if job.generated == len(job.sequence.output):
                job.finished = True
                self.scheduler.running.remove(job)
                self.scheduler.release(job)
                del self._jobs[job.sequence.request.request_id]
        events = self.kv.take_events()
        seconds = milliseconds / 1000 / speed + (self.kv.ready - now)
        return OracleStep(seconds, outputs, events, plan.prefill_tokens, len(plan.preempted))


def line(xs: Row[float], ys: Row[float], x: float) -> float:
    """Through the two neighbours of x, or the two points nearest to it."""
    at = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    share = (x - xs[at]) / (xs[at + 1] - xs[at])
    return ys[at] + (ys[at + 1] - ys[at]) * share


def surface(xs: Row[float], ys: Row[float], rows: Row[Row[float]], x: float, y: float) -> float:
    """Bilinear: along each row, then between the rows."""
    return line(xs, [line(ys, row, y) for row in rows], x)
