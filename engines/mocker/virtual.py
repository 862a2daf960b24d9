"""VirtualFleet: many engines in virtual time, as one native machine.

The engines are those that a MockEngine drives in real time; tokens have no content here, only
hashes. What the event plane does to the engines' events is
decided by a seed: a message is what one step says, and a lost one leaves a gap in the numbering.
"""

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import InvalidRequestError, NoWorkersError
from ...base.identity import WorkerWithDpRank
from ...indexer.wire import TIERS, StorageTier, encode_heartbeat
from ...workers.retention import Span
from .config import EVEN_SPEEDS, EngineConfig
from .core import Fleet

Hashes = npt.NDArray[np.uint64]


class Emitted(IntFlag):
    """Which of a request's tokens a step brought."""

    FIRST = 1
    LAST = 2
    WAITS = 4  # none: it has blocks for a prompt that is handed over, whose transfer may begin


class Handoff(IntEnum):
    """How far a request has come whose prompt one engine computes and another one decodes."""

    NONE = 0
    HANDS_OVER = 1  # its prompt is computed, and kept until it is read
    HANDED_OVER = 2  # it waits for blocks at the other engine
    ARRIVING = 3  # it has them


class Emissions(NamedTuple):
    """First and last tokens, in the order of time. Arrays of one length."""

    times: npt.NDArray[np.float64]  # seconds: the end of the step
    requests: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]  # Emitted
    cached_tokens: npt.NDArray[np.int64]  # of the prompt, when the request first ran
    preemptions: npt.NDArray[np.int64]  # so far


class EngineStats(NamedTuple):
    """Totals of one engine."""

    steps: int
    busy_s: float
    waited_s: float  # requests that waited, integrated over its steps
    most_waiting: int
    loading_s: float  # of `busy_s`: waiting for blocks from host memory and disk


class VirtualFleet:
    """`size` workers, numbered from 0, which is the worker id in their events.

    A worker is an engine, or `config.dp_size` of them: its data-parallel ranks.

    Time only moves on: no call takes a time before that of the call before. After `advance(t)`,
    steps that end by t have ended, and those that begin before t have begun: a request submitted
    at t is in the step that begins at t.
    """

    def __init__(
        self,
        config: EngineConfig,
        size: int,
        *,
        speeds: tuple[float, ...] = EVEN_SPEEDS,
        record_events: bool = True,
        event_loss: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`speeds`: how fast each worker is, over and over if there are more of them.

        `event_loss`: the share of messages that get lost. Off, `record_events` saves time.
        """
        self.config = config
        self._fleet = Fleet(
            config,
            config.timing,
            size,
            speeds=np.resize(np.array(speeds, np.float64), size),
            record_events=record_events,
            loss=event_loss,
            seed=seed,
        )

    def submit(
        self,
        worker: int,
        request: int,
        *,
        rank: int = 0,
        prompt_tokens: int,
        output_tokens: int,
        local_hashes: Hashes,
        sequence_hashes: Hashes,
        now: float,
        followed_after_s: float | None = None,
        retention: Sequence[Span] | None = None,
        handoff: Handoff = Handoff.NONE,
    ) -> None:
        """Queue a request; the hashes are those of every full block of prompt and output.

        `retention`: how its blocks are kept once it is over; None: no hint.
        `followed_after_s`: how long after its last token a request arrives that depends on it.
        Raises InvalidRequestError if it can never run here, NoWorkersError if the queue is full.
        """
        config, engine = self.config, self._engine(worker, rank)
        self.check_lengths(prompt_tokens, output_tokens)
        if self._fleet.waiting(engine) >= config.max_waiting:
            raise NoWorkersError(f"worker {worker} has {config.max_waiting} requests waiting")
        self._fleet.submit(
            engine,
            request,
            prompt_tokens,
            output_tokens,
            sequence_hashes,
            local_hashes,
            now,
            -1.0 if followed_after_s is None else followed_after_s,
            retention,
            handoff,
        )

    def check_lengths(self, prompt_tokens: int, output_tokens: int) -> None:
        """Raises InvalidRequestError if such a request can never run here."""
        config = self.config
        if not 1 <= prompt_tokens <= config.max_input_len:
            raise InvalidRequestError(
                f"the prompt has {prompt_tokens} tokens, the limit is {config.max_input_len} "
                f"({config.length_key})"
            )
        if output_tokens < 1 or prompt_tokens + output_tokens > config.max_seq_len:
            raise InvalidRequestError(
                f"{prompt_tokens} prompt tokens and {output_tokens} more: the limit is "
                f"{config.max_seq_len} ({config.length_key})"
            )

    def restart(self, worker: int, now: float) -> None:
        """Every rank of a worker is new at `now`: nothing cached, events from 1. Requests that it
        has are gone, and bring nothing any more."""
        for rank in range(self.config.dp_size):
            self._fleet.restart(self._engine(worker, rank), now)

    def queues(self, worker: int) -> tuple[int, int]:
        """Requests that wait at a worker, and that run."""
        engines = [self._engine(worker, rank) for rank in range(self.config.dp_size)]
        waiting = sum(self._fleet.waiting(engine) for engine in engines)
        return waiting, sum(self._fleet.running(engine) for engine in engines)

    def settle_handoff(self, worker: int, request: int, state: Handoff, now: float) -> None:
        """A prompt has come to the engine where its request is ARRIVING, or was read from the one
        that HANDS_OVER. KeyError if there is none."""
        if not self._fleet.settle_handoff(self._engine(worker, 0), request, state, now):
            raise KeyError(request)

    def prefetch(
        self, worker: int, local_hashes: Hashes, sequence_hashes: Hashes, now: float, rank: int = 0
    ) -> int:
        """Load from the tiers below the device what they have of these blocks, next to what the
        device has; how many that are. They count as just used.
        """
        engine = self._engine(worker, rank)
        loaded: int = self._fleet.prefetch(engine, sequence_hashes, local_hashes, now)
        return loaded

    def advance(self, until: float, *, to_answer: bool = False) -> float:
        """Let time pass; `inf` until every request is done. Returns the time that was reached.

        That is `until`, or the arrival of the first request that follows one which ended, or,
        where only time `to_answer` is to pass, the first time that a first or last token comes.
        """
        return self._fleet.advance(until, to_answer)

    def announce(self, worker: int, now: float, rank: int = 0) -> None:
        """The engine publishes its whole cache anew, as one `cleared` and its blocks."""
        self._fleet.announce(self._engine(worker, rank), now)

    def replay(self, worker: int, rank: int, first: int, last: int | None) -> bytes | None:
        """What the rank published, from event `first` to `last` (None: the newest), once more.

        Parts of it may get lost again. None if it is not kept any more: see `announce`.
        """
        newest = 2**64 - 2 if last is None else last
        return self._fleet.replay(self._engine(worker, rank), first, newest)

    def heartbeat(self, worker: int, rank: int) -> bytes:
        """What the rank says now and then: which of its collected events was the last."""
        engine = self._engine(worker, rank)
        return encode_heartbeat(
            WorkerWithDpRank(worker, rank),
            self._fleet.collected(engine),
            1,
            0,
            0,
        )

    def collect(
        self, published_until: float, first: int = 0, end: int | None = None
    ) -> bytes | None:
        """What was published until then and not lost, as a message of the event plane; of workers
        `first` to `end`, without that."""
        ranks = self.config.dp_size
        last = self._fleet.size if end is None else end * ranks
        return self._fleet.collect(published_until, first * ranks, last)

    def take_emissions(self) -> Emissions:
        """First and last tokens since the last call."""
        return Emissions(*self._fleet.take_emissions())

    def collected_events(self, worker: int, rank: int = 0) -> int:
        """Number of the rank's last event that was collected, lost or not."""
        return self._fleet.collected(self._engine(worker, rank))

    @property
    def lost_messages(self) -> int:
        """Of those that were collected."""
        return self._fleet.lost

    @property
    def is_busy(self) -> bool:
        """Whether any request is not done."""
        return self._fleet.is_busy()

    def gaps(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint32]]:
        """Seconds between neighbouring tokens of a request, and how many requests saw each."""
        return self._fleet.gaps()

    def stats(self) -> list[EngineStats]:
        """Of every engine: the ranks of the first worker, then those of the next one."""
        return [EngineStats(*row) for row in self._fleet.stats()]

    def cached_blocks(
        self, worker: int, rank: int = 0, tier: StorageTier = "device"
    ) -> list[tuple[int, int | None, int, int]]:
        """(hash, parent's hash, local hash, holders) of each block of a tier, in the order they
        came: on the device parents first.
        """
        return self._fleet.cache(self._engine(worker, rank), TIERS.index(tier))

    def pools(self, worker: int, rank: int = 0) -> tuple[int, int]:
        """Blocks held by requests, and blocks cached without a reference."""
        return self._fleet.pools(self._engine(worker, rank))

    def _engine(self, worker: int, rank: int) -> int:
        """The number of a rank among all engines."""
        if not 0 <= rank < self.config.dp_size:
            raise IndexError(f"there is no rank {rank}")
        return worker * self.config.dp_size + rank
