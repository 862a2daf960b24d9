"""MockEngine: an LLM engine as a pure state machine, driven in real or in virtual time.

Requests and `now` go in; how long each step lasts, who got a token in it and what changed in the
cache come out. It knows no clock, no loop and no network.
"""

from typing import NamedTuple

from ...runtime.errors import InvalidRequestError, NoWorkersError
from .config import EngineConfig
from .kv_events import KvEvent
from .kv_manager import KvManager
from .scheduler import Scheduler
from .sequence import EngineRequest, Sequence
from .timing import PolynomialTiming, StepTiming


class StepResult(NamedTuple):
    """One step: begun at the `now` it was given, over `duration_s` seconds later."""

    duration_s: float
    outputs: list[Sequence]  # each has one more token when the step is over; see `finished`
    events: list[KvEvent]  # in order; true from the start of the step
    prefill_tokens: int
    preempted: int


class MockEngine:
    """One engine. A finished or aborted request is forgotten at once."""

    def __init__(self, config: EngineConfig, timing: StepTiming | None = None) -> None:
        self.config = config
        self.kv = KvManager(config.num_gpu_blocks)
        self._scheduler = Scheduler(config, self.kv)
        self._timing = timing or PolynomialTiming(
            config.capacity_tokens, decode_speedup=config.decode_speedup_ratio
        )
        self._live: dict[str, Sequence] = {}

    @property
    def running(self) -> int:
        """Requests that hold blocks."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests that were not admitted yet, or were preempted."""
        return len(self._scheduler.waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._live

    def submit(self, request: EngineRequest, now: float) -> Sequence:
        """Queue a request.

        Raises InvalidRequestError if it can never run here or its id is in use, NoWorkersError
        if the waiting queue is full.
        """
        self._check(request)
        if len(self._scheduler.waiting) >= self.config.max_waiting:
            raise NoWorkersError(f"the engine has {self.config.max_waiting} requests waiting")
        sequence = Sequence(
            request,
            now,
            block_size=self.config.block_size,
            vocab_size=self.config.vocab_size,
            eos=self.config.eos_token_id,
        )
        self._live[request.request_id] = sequence
        self._scheduler.add(sequence)
        return sequence

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks; False if there is none of that id."""
        sequence = self._live.pop(request_id, None)
        if sequence is None:
            return False
        self._scheduler.remove(sequence)
        return True

    def step(self, now: float) -> StepResult:
        """Begin the next step; the caller lets `duration_s` pass before it begins another one.

        Without work nothing happens and the duration is 0. A request that finishes has let go of
        its blocks when this returns: nothing else can use them before the step is over.
        """
        if not self._live:
            return StepResult(0.0, [], self.kv.take_events(), 0, 0)
        plan = self._scheduler.schedule()
        milliseconds = self._timing.prefill_ms(plan.prefill_tokens)
        if plan.decodes:
            milliseconds += self._timing.decode_ms(plan.decode_tokens)
        finished = []
        for sequence in plan.ready:
            sequence.generated += 1
            sequence.known += 1
            if sequence.generated == len(sequence.output):
                sequence.finished = True
                finished.append(sequence)
        if finished:
            self._scheduler.retire(finished)
            for sequence in finished:
                del self._live[sequence.request.request_id]
        return StepResult(
            milliseconds / 1000,
            plan.ready,
            self.kv.take_events(),
            plan.prefill_tokens,
            len(plan.preempted),
        )

    def _check(self, request: EngineRequest) -> None:
        config, prompt = self.config, len(request.token_ids)
        if not prompt:
            raise InvalidRequestError("the prompt is empty", field="input_token_ids")
        if prompt > config.max_input_len:
            raise InvalidRequestError(
                f"the prompt has {prompt} tokens, the limit is {config.max_input_len}",
                field="input_token_ids",
            )
        largest = int(request.token_ids.max())
        if largest >= config.vocab_size:
            raise InvalidRequestError(
                f"token id {largest} is not below the vocabulary size {config.vocab_size}",
                field="input_token_ids",
            )
        if request.max_tokens < 1:
            raise InvalidRequestError("max_tokens must be at least 1", field="max_tokens")
        if prompt + request.max_tokens > config.max_seq_len:
            raise InvalidRequestError(
                f"{prompt} prompt tokens and max_tokens {request.max_tokens} together exceed "
                f"the limit of {config.max_seq_len}",
                field="max_tokens",
            )
        banned = sum(token < config.vocab_size for token in request.bad_token_ids)
        if banned >= config.vocab_size - 1:
            raise InvalidRequestError("no token is left to generate", field="bad_token_ids")
        if not 0 <= request.seed < 2**64:
            raise InvalidRequestError("seed must fit 64 bits", field="seed")
        if request.request_id in self._live:
            raise request_id_in_use(request.request_id)


def request_id_in_use(request_id: str) -> InvalidRequestError:
    return InvalidRequestError(f"request id {request_id!r} is in use", field="request_id")
