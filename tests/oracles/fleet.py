"""The reference for VirtualFleet: one engine each, moved step by step in plain Python."""

from dataclasses import dataclass, field

from oracles.engine import OracleMockEngine, OracleStep

from dynamo_router.engines.mocker.config import EngineConfig
from dynamo_router.engines.mocker.sequence import Sequence
from dynamo_router.engines.serving.kv_events import KvEvent
from dynamo_router.engines.serving.request import EngineRequest


@dataclass
class OracleEngine:
    """Emissions, gaps and events of one engine, as VirtualFleet documents them."""

    config: EngineConfig
    speed: float = 1.0
    emitted: list[tuple[float, int, int, int, int]] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    events: list[tuple[float, list[KvEvent]]] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        self.engine = OracleMockEngine(self.config)
        self._clock = self.config.startup_time_s
        self._step: OracleStep | None = None
        self._last: dict[int, float] = {}

    def submit(self, request: EngineRequest, now: float) -> Sequence:
        if self._step is None:
            self._clock = max(self._clock, now)
        return self.engine.submit(request)

    def advance(self, until: float) -> None:
        while True:
            if self._step is not None:
                if self._clock > until:
                    return
                self._emit(self._step)
                self._step = None
            if not self.engine.has_work or self._clock >= until:
                return
            self._step = self.engine.step(self._clock, self.speed)
            self.steps += 1
            if self._step.events:
                self.events.append((self._clock, self._step.events))
            self._clock += self._step.duration_s

    def _emit(self, step: OracleStep) -> None:
        for job in step.outputs:
            number = int(job.sequence.request.request_id)
            if number in self._last:
                self.gaps.append(self._clock - self._last[number])
            kind = (number not in self._last) | job.finished << 1
            self._last[number] = self._clock
            if kind:
                assert job.cached_tokens is not None
                self.emitted.append((self._clock, number, kind, job.cached_tokens, job.preemptions))
