"""What a policy is: the modes by name, what a policy sees of a request, and what it answers."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ...slots.table import SlotTable
from ...workers.registry import WorkerEntry
from .draw import Rng, pick
from .dynamo_cost import Blocks, Counts, Floats, Mask
from .residuals import ResidualState

Mode = Literal["kv", "round-robin", "random", "least-loaded", "power-of-two", "direct"]
_HASH = np.dtype("<u8")
MODES: tuple[str, ...] = ("kv", "round-robin", "random", "least-loaded", "power-of-two", "direct")


class ShedBound(NamedTuple):
    """Beyond what a request is refused, wherever it would go."""

    ttft_s: float
    """seconds from now to its first token; inf: no TTFT objective is looked at"""
    missed_share: float
    """times as many missed ITL objectives as another request may cost; inf: none are looked at"""
    is_possible: bool = True
    """whether an idle engine with nothing cached would meet its TTFT objective"""
    tenant: str = ""
    """whose it is"""
    has_more: bool = False
    """whether that tenant has more in the engines than its share, while others are about"""


class Candidates:
    """One request before the workers. Arrays are by worker number; loads are computed when asked.

    `eligible` are the workers it may go to. `overlaps` (leading blocks of the prompt on the device)
    and `sequence_hashes` are None for a policy that does not need them, the lower tiers' overlaps
    where there are none. `saved_prefill_blocks` are what all tiers together save, each at its
    weight: `overlaps` if there is only the device. `weights_given`: these were set, and hold in
    place of what was learnt. `unheard` are requests that other routers are expected to have sent to
    each worker and that are not counted yet; None where there are none. `now` is the router's time
    in seconds. Good for one decision: the loads are those of when they were first asked for.
    """

    def __init__(
        self,
        slots: SlotTable,
        *,
        isl: int,
        eligible: Mask,
        overlaps: Blocks | None = None,
        sequence_hashes: npt.NDArray[np.uint64] | None = None,
        host_overlaps: Blocks | None = None,
        disk_overlaps: Blocks | None = None,
        saved_prefill_blocks: Blocks | None = None,
        weights_given: bool = False,
        unheard: Floats | None = None,
        now: float = 0.0,
    ) -> None:
        self.slots = slots
        self.now = now
        self.isl = isl
        self.block_size = slots.block_size
        self.eligible = eligible
        self.overlaps = overlaps
        self.sequence_hashes = sequence_hashes
        self.host_overlaps = host_overlaps
        self.disk_overlaps = disk_overlaps
        self.weights_given = weights_given
        self.unheard = unheard
        self.bound: ShedBound | None = None
        """beyond what the request is refused; None: it is not"""
        self.saved_prefill_blocks = (
            overlaps if saved_prefill_blocks is None else saved_prefill_blocks
        )
        self.chosen: tuple[int, float] | None = None
        """the worker that was chosen, and its blocks with this request, where its policy knows"""
        # Not cached_property: in Python 3.11 it takes a lock, which costs more than the arrays do.
        self._potential_blocks: Floats | None = None
        self._prefill_tokens: Counts | None = None
        self._active_requests: Counts | None = None

    @property
    def potential_blocks(self) -> Floats:
        """Decode blocks each worker would have with this request."""
        if self._potential_blocks is None:
            self._potential_blocks = self.slots.potential(self.sequence_hashes, self.isl, None)[0]
        return self._potential_blocks

    @property
    def active_blocks(self) -> Counts:
        """Decode blocks each worker has without it."""
        return self.slots.active_blocks()

    @property
    def prefill_tokens(self) -> Counts:
        """Prompt tokens each worker has still to prefill, without this request."""
        if self._prefill_tokens is None:
            self._prefill_tokens = self.slots.active_prefill_tokens()
        return self._prefill_tokens

    @property
    def active_requests(self) -> Counts:
        """Requests each worker has in flight, without this one."""
        if self._active_requests is None:
            self._active_requests = self.slots.active_requests()
        return self._active_requests

    def blocks_with(self, number: int) -> float:
        """Decode blocks that one worker has with this request; 0 for the chosen one where its
        cache has no known size, for which they were not counted."""
        if self.chosen is not None and self.chosen[0] == number:
            return self.chosen[1]
        if self._potential_blocks is not None:
            return float(self._potential_blocks[number])
        return float(self.slots.potential_of(self.sequence_hashes, number))

    def uncached_tokens(self) -> Counts:
        """Prompt tokens that each worker would compute; the last one is computed in any case."""
        tokens = np.full(len(self.eligible), self.isl, np.int64)
        if self.overlaps is not None:
            tokens -= self.overlaps.astype(np.int64) * self.block_size
        return np.maximum(tokens, 1)


class HeardBooking(msgspec.Struct, frozen=True):
    """A request that another router has sent to a worker, and that `slots` count there."""

    request_id: str
    number: int
    """the worker's"""
    isl: int
    cached_tokens: int
    """of its prompt, in whole blocks; all of one that was computed before this router knew of it"""
    hashes: bytes | None
    """its blocks' sequence hashes, 8 bytes each, little-endian; None: its blocks do not count"""
    slots: SlotTable
    eligible: Mask
    now: float

    def candidates(self) -> Candidates:
        """The request before the workers; only what it finds at its own one is known."""
        overlaps = np.zeros(len(self.eligible), np.uint32)
        overlaps[self.number] = self.cached_tokens // self.slots.block_size
        found = Candidates(
            self.slots,
            isl=self.isl,
            eligible=self.eligible,
            overlaps=overlaps,
            sequence_hashes=None if self.hashes is None else np.frombuffer(self.hashes, _HASH),
            now=self.now,
        )
        found.chosen = self.number, self.blocks()
        return found

    def blocks(self) -> float:
        """In use at its worker, which has its own already."""
        return float(self.slots.potential_of(None, self.number))


class Foreseen(NamedTuple):
    """What a request is foreseen to meet on one worker, in seconds."""

    wait_s: float
    """until its prefill can begin"""
    prefill_s: float
    memory_s: float
    """until its blocks have room"""
    stalled_s: float
    """that the requests there stand still while it is computed, summed over them"""
    delay_s: float
    """that prompts wait longer which are computed in a step with it"""
    step_s: float
    """of a step that computes a prompt, without its tokens"""
    decode_step_s: float
    """of a step that computes none, for those that decode there now"""

    @property
    def ttft_s(self) -> float:
        """Until its first token."""
        return self.wait_s + self.prefill_s + self.memory_s


class Policy:
    """Chooses a worker for each request: `score` must be written, the rest has defaults.

    Three groups: score and pick decide; `hold...` and `order_penalty_s` say who waits in the router
    and in which order; the `on_...` methods get what becomes of requests, in the order it happens.
    All are called under the router's lock. Times are seconds of the router's clock, `number` is a
    worker's, arrays are by worker number.

    A policy that overrides an `on_...` method learns from one router, and belongs to it. One that
    does not may not be called, and one that does not override `hold` is not asked.
    """

    needs_overlaps: bool = True
    """Whether it looks at the caches; if not, prompts are not hashed and not matched for it."""
    temperature: float = 0.0
    """Of the softmax over costs by which `pick` draws; 0: the lowest cost."""
    refused: int = 0
    """Requests that it has refused for the load, ever."""
    holds: bool = False
    """Whether `hold` is overridden. Set for each class; a wrapper sets its own."""
    learns: bool = False
    """Whether an `on_...` method is overridden. Set for each class; a wrapper sets its own."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.holds = cls.hold is not Policy.hold
        cls.learns = any(
            getattr(cls, name) is not method
            for name, method in vars(Policy).items()
            if name.startswith("on_")
        )

    # Decisions

    def score(self, candidates: Candidates) -> Floats:
        """The cost of each worker, lower is better; inf where it is not eligible or ruled out."""
        raise NotImplementedError

    def pick(self, costs: Floats, rng: Rng) -> int:
        """The number of a worker whose cost is finite; NoWorkersError if there is none."""
        return pick(costs, self.temperature, rng)

    def choose(self, candidates: Candidates, rng: Rng) -> int:
        """The number of the worker that the request goes to."""
        return self.pick(self.score(candidates), rng)

    def explain(self, candidates: Candidates) -> Mapping[int, Mapping[str, float]]:
        """What the costs are made of, by worker number; nothing by default."""
        return {}

    def residuals(self) -> ResidualState | None:
        """How well it foresees, and whether that decides now; None where it foresees nothing."""
        return None

    def foresee(self, candidates: Candidates, number: int) -> Foreseen | None:
        """What the request would meet on that worker; None where nothing is foreseen."""
        return None

    def foreseen_ttft_s(self, request_id: str) -> tuple[float, float] | None:
        """Seconds to the first token of a booked request, as foreseen when it was booked: on its
        worker, and on the soonest that it might have gone to. None where nothing was foreseen, or
        what is foreseen is not trusted."""
        return None

    def relief_s(self, eligible: Mask, now: float) -> float | None:
        """Seconds until one of these workers has computed its prompts and ended an answer; None
        where it is not known."""
        return None

    def cold_s(self, isl: int) -> float | None:
        """Seconds that such a prompt takes on an idle engine that has none of it cached; None where
        it is not known."""
        return None

    # Waiting

    def hold(self, eligible: Mask, active_blocks: Counts, now: float) -> float:
        """Seconds to keep a request waiting in the router before one of these workers gets it.

        0: it should go now. inf: not before load falls. `active_blocks` are the KV blocks that each
        worker's requests hold. Not asked where none of the eligible workers has a request.
        """
        return 0.0

    def hold_over_share(self, eligible: Mask, active_blocks: Counts, now: float) -> float:
        """The same of a tenant's that has more in the engines than its share, while others are
        about: it should find them such that a request of those would begin at once.

        Asked beside `hold`; the longer wait counts.
        """
        return 0.0

    def order_penalty_s(self, uncached_tokens: int) -> float:
        """Seconds that a waiting request's turn counts as later than its arrival.

        `uncached_tokens` are those of its prompt that even the best worker has to compute.
        """
        return 0.0

    # What becomes of requests. Each is booked once and ends once, if it does not go with its
    # worker; a first token need not come.

    def on_worker(self, number: int, entry: WorkerEntry) -> None:
        """A worker came, or its known facts have changed."""

    def on_worker_gone(self, number: int) -> None:
        """A worker left, and its requests with it."""

    def on_booked(self, request_id: str, number: int, candidates: Candidates) -> None:
        """A request goes to a worker, chosen here or pinned. The candidates include it."""

    def on_expected(self, request_id: str, number: int, candidates: Candidates) -> None:
        """A request goes to a worker, its prompt computed by another one before: as `on_booked`,
        unless overridden."""
        self.on_booked(request_id, number, candidates)

    def on_heard(self, heard: HeardBooking) -> None:
        """Another router has sent a request to a worker: as `on_booked`, unless overridden."""
        self.on_booked(heard.request_id, heard.number, heard.candidates())

    def on_cached(self, request_id: str, cached_tokens: int) -> None:
        """Its engine says how many of its prompt's tokens it found cached; 0 may mean nothing.

        Called right before `on_first_token`, where the engine reports it at all.
        """

    def on_first_token(self, request_id: str, now: float) -> None:
        """Its first token is out."""

    def on_end(self, request_id: str, now: float, output_tokens: int | None) -> None:
        """It ended, however; `output_tokens` if they were counted."""
