"""MockEngine: an LLM engine as a pure state machine, with tokens. The live mocker drives it.

Requests and steps go in; how long each step lasts, who got a token in it and what changed in the
cache come out. It knows no clock, no loop and no network. Scheduling and cache are native, and are
those of the simulation (_engine.pyx); here are the tokens, and what a request may not ask for.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Sequence_
from typing import Any, NamedTuple

from ...base.errors import InvalidRequestError, NoWorkersError
from ...indexer.wire import StorageTier
from ..serving import (
    ENGINE_TIERS,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CachedBlock,
    EngineRequest,
    KvEvent,
    unsupported,
)
from ..transfer import CORRUPT
from .config import EngineConfig
from .contents import CacheContents
from .core import SingleEngine
from .sampling import banned_tokens
from .sequence import Sequence
from .virtual import Handoff

_NUMBERS = 2**32


class StepResult(NamedTuple):
    """One step, over `duration_s` seconds after it was begun."""

    duration_s: float
    outputs: list[Sequence]  # each has one more token when the step is over; see `finished`
    events: list[KvEvent]  # in order; true from the start of the step
    prefill_tokens: int
    preempted: int
    arriving: list[tuple[str, int]]
    """requests that have blocks for a prompt that is handed over, and how many of its tokens are to
    come: see `arrive`"""
    kept: Sequence_[tuple[int, Sequence]] = ()
    """prompts that are kept for their readers, by number: see `let_go`"""
    corrupt: Sequence_[tuple[str, str]] = ()
    """requests that have read wrong contents, and what of it: they are aborted"""


class MockEngine:
    """One engine, or one data-parallel rank of one. A finished or aborted request is forgotten."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.contents: CacheContents | None = None
        """of its blocks, if they have any; set before there is a request"""
        self.hands_over = False
        """whether it keeps prompts that it has computed for their readers; the same"""
        self._core = SingleEngine(config, config.timing)
        self._live: dict[str, int] = {}
        self._sequences: dict[int, Sequence] = {}
        self._arriving: set[int] = set()
        self._kept: dict[int, tuple[Sequence, list[int]]] = {}  # with the blocks beside the cache
        self._handed_over: dict[int, list[int]] = {}  # the same, of those that have just come
        self._early: list[KvEvent] = []  # of the next step
        self._last_number = 0
        # By tier, as announced; on the device a parent comes before its children.
        self._cached: dict[StorageTier, dict[int, CachedBlock]] = {
            tier: {} for tier in ENGINE_TIERS
        }

    @property
    def running(self) -> int:
        """Requests admitted and not finished."""
        return self._core.running

    @property
    def waiting(self) -> int:
        """Requests not admitted yet, or preempted."""
        return self._core.waiting

    @property
    def active_blocks(self) -> int:
        """Blocks that requests hold, partial ones included."""
        return self._core.active_blocks

    @property
    def inactive_blocks(self) -> int:
        """Cached blocks without a reference."""
        return self._core.inactive_blocks

    @property
    def has_work(self) -> bool:
        """Whether a request is here that waits for no prompt."""
        return len(self._live) > len(self._arriving)

    @property
    def kept(self) -> int:
        """Prompts that are kept for their readers."""
        return len(self._kept)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._live

    def cached_blocks(self, tier: StorageTier = "device") -> Iterable[CachedBlock]:
        """Every full block in a tier, parents first; none of a tier that is not announced."""
        blocks = self._cached[tier].values()
        # What goes down a tier goes before its parent does.
        return blocks if tier == "device" else reversed(blocks)

    def holders(self) -> dict[int, int]:
        """How many requests hold each block on the device."""
        return {block_hash: holders for block_hash, _, _, holders in self._core.cache(0)}

    def submit(self, request: EngineRequest) -> Sequence:
        """Queue a request.

        Raises InvalidRequestError if it can never run here or its id is in use, NoWorkersError
        if the waiting queue is full.
        """
        self._check(request)
        config = self.config
        if self.waiting >= config.max_waiting:
            raise NoWorkersError(f"the engine has {config.max_waiting} requests waiting")
        sequence = Sequence(request, self.config)
        number = self._new_number()
        self._core.submit(
            number,
            sequence.prompt_len,
            len(sequence.output),
            sequence.sequence_hashes,
            sequence.local_hashes,
            request.retention_spans(config.block_size),
            self._handoff_of(request),
        )
        self._live[request.request_id] = number
        self._sequences[number] = sequence
        return sequence

    def uncached_tokens(self, request: EngineRequest) -> int:
        """Of a prompt, those behind its first blocks that are on the device."""
        sequence, cached = Sequence(request, self.config), self._cached["device"]
        size, blocks = self.config.block_size, 0
        hashes: list[int] = sequence.sequence_hashes[: sequence.prompt_len // size].tolist()
        while blocks < len(hashes) and hashes[blocks] in cached:
            blocks += 1
        return sequence.prompt_len - blocks * size

    def prefetch(self, request: EngineRequest, since_s: float = 0.0) -> tuple[int, list[KvEvent]]:
        """Load what lower tiers have of a prompt that is expected; (blocks, what changed).

        It begins so many of the engine's seconds after its last step ended, below 0 while that
        runs.
        Raises InvalidRequestError if the prompt can never run here.
        """
        self._check(request)
        sequence = Sequence(request, self.config)
        blocks = sequence.prompt_len // self.config.block_size
        number = self._new_number()
        self._sequences[number] = sequence
        loaded, changes = self._core.prefetch(
            sequence.sequence_hashes[:blocks], sequence.local_hashes[:blocks], number, since_s
        )
        events = [self._event(change) for change in changes]
        del self._sequences[number]
        return loaded, events

    def clear(self) -> list[KvEvent]:
        """Forget the whole cache, while there is no request; what changed."""
        assert not self._live and not self._kept
        self._core = SingleEngine(self.config, self.config.timing)
        self._early.clear()
        if self.contents is not None:
            self.contents.clear()
        for blocks in self._cached.values():
            blocks.clear()
        return [CacheCleared()]

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its blocks; False if there is none of that id."""
        number = self._live.pop(request_id, None)
        if number is None:
            return False
        del self._sequences[number]
        self._arriving.discard(number)
        self._core.abort(number)
        self._give_back(self._handed_over.pop(number, ()))
        return True

    def arrive(self, request_id: str, landed: Iterable[int] = ()) -> None:
        """The prompt of a request that was handed over has come. Nothing if it has left.

        `landed`: the blocks of the arena that have what was to come, in its order.
        """
        number = self._live.get(request_id)
        if number is None or number not in self._arriving:
            self._give_back(landed)
            return
        self._arriving.remove(number)
        places: dict[int, int] = {}
        if self.contents is not None:
            blocks, hashes = list(landed), self._sequences[number].prompt_hashes()
            places = dict(zip(hashes[len(hashes) - len(blocks) :], blocks, strict=True))
            self._handed_over[number] = []
        self._early += [self._event(change, places) for change in self._core.arrive(number)]
        # Left are the partial block, and what was computed here meanwhile.
        if places:
            self._handed_over[number] = list(places.values())

    def let_go(self, number: int) -> bool:
        """A prompt is kept for its reader no longer; False if none of that number is."""
        kept = self._kept.pop(number, None)
        if kept is None:
            return False
        self._core.release(number)
        self._give_back(kept[1])
        return True

    def kept_blocks(self, number: int) -> list[int]:
        """Where a prompt that is kept lies in the arena, its partial block behind the others."""
        assert self.contents is not None
        sequence, beside = self._kept[number]
        full = sequence.prompt_len // self.config.block_size
        return self.contents.blocks_of(sequence.sequence_hashes[:full].tolist()) + beside

    def step(self, idle_s: float = 0.0) -> StepResult:
        """Begin the next step; the caller lets `duration_s` pass before it begins another one.

        `idle_s` is what has passed since the step before was over, as the engine's time goes.
        Without work nothing happens and the duration is 0. A request that finishes has let go of
        its blocks when this returns: nothing else can use them before the step is over.
        """
        if not self._live:
            return StepResult(0.0, [], [], 0, 0, [])
        seconds, tokens, changes, prefill_tokens, preempted, came = self._core.step(idle_s)
        events, self._early = self._early, []
        events += [self._event(change) for change in changes]
        outputs, kept, corrupt = [], [], []
        for number, last, cached, preemptions in tokens:
            sequence = self._sequences[number]
            sequence.generated += 1
            sequence.cached_tokens = cached
            sequence.preemptions = preemptions
            request_id = sequence.request.request_id
            why = None
            if self.contents is not None and sequence.generated == 1:
                why = self._read_contents(number, sequence, cached)
            if last:
                sequence.finished = True
                del self._sequences[number], self._live[request_id]
                if self.hands_over and why is None and sequence.finish_reason == "length":
                    self._keep(number, sequence)
                    kept.append((number, sequence))
                elif self.hands_over:
                    self._core.release(number)
            if why is None:
                outputs.append(sequence)
            else:
                corrupt.append((request_id, why))
                self.abort(request_id)  # unless it is over
        arriving = []
        for number, cached in came:
            self._arriving.add(number)
            sequence = self._sequences[number]
            arriving.append((sequence.request.request_id, sequence.prompt_len - cached))
        return StepResult(
            seconds, outputs, events, prefill_tokens, preempted, arriving, kept, corrupt
        )

    def _read_contents(self, number: int, sequence: Sequence, cached: int) -> str | None:
        """Read what a request was not computed from: what is wrong with it. At its first token."""
        assert self.contents is not None
        full = cached // self.config.block_size
        beside = self._handed_over.pop(number, None)
        hashes: list[int] = sequence.sequence_hashes[:full].tolist()
        if beside is not None:
            hashes = sequence.prompt_hashes()
            full = sequence.prompt_len // self.config.block_size
        wrong = self.contents.check(hashes[:full])
        if beside is not None:
            tail = beside[-1:] if len(hashes) > full else []
            wrong += self.contents.check(hashes[full:], tail)
            self._give_back(beside)
        if not wrong:
            return None
        whose = "handed over" if beside is not None else "cached"
        return (
            f"{CORRUPT}: {wrong} of the prompt's {len(hashes)} {whose} blocks have wrong contents"
        )

    def _keep(self, number: int, sequence: Sequence) -> None:
        beside: list[int] = []
        if self.contents is not None:
            full = sequence.prompt_len // self.config.block_size
            beside = self.contents.add(sequence.prompt_hashes()[full:])
        self._kept[number] = (sequence, beside)

    def _give_back(self, blocks: Iterable[int]) -> None:
        if self.contents is not None:
            self.contents.give_back(blocks)

    def _handoff_of(self, request: EngineRequest) -> Handoff:
        """Whether its prompt comes from elsewhere; the profile classic computes it all the same."""
        if self.hands_over:
            return Handoff.HANDS_OVER
        is_given = request.handoff is not None and self.config.engine_type == "vllm"
        return Handoff.HANDED_OVER if is_given else Handoff.NONE

    def _event(self, change: tuple[Any, Any, Any], landed: dict[int, int] | None = None) -> KvEvent:
        """A change of the native cache, with the tokens that belong to it.

        (number, first, count): blocks of a sequence are on the device now; (came, tier, hashes):
        blocks came to a tier from another one, or left it.
        """
        if isinstance(change[2], list):
            came, tier, hashes = change
            if not came:
                for block_hash in hashes:
                    del self._cached[tier][block_hash]
                if tier == "device" and self.contents is not None:
                    self.contents.remove(hashes)
                return BlocksRemoved(hashes, tier)
            blocks = [self._known(block_hash) for block_hash in hashes]
        else:
            number, first, count = change
            tier, sequence = "device", self._sequences[number]
            blocks = sequence.cached_blocks(first, count)
        # Lower tiers get the last block of a chain first: see cached_blocks.
        order = blocks if tier == "device" else blocks[::-1]
        self._cached[tier].update({block.block_hash: block for block in order})
        if tier == "device" and self.contents is not None:
            self.contents.store([block.block_hash for block in blocks], landed)
        return BlocksStored(blocks, tier)

    def _known(self, block_hash: int) -> CachedBlock:
        """A block that moves: it is in its old tier still."""
        return next(blocks[block_hash] for blocks in self._cached.values() if block_hash in blocks)

    def _new_number(self) -> int:
        while True:
            self._last_number = (self._last_number + 1) % _NUMBERS
            if self._last_number not in self._sequences and self._last_number not in self._kept:
                return self._last_number

    def _check(self, request: EngineRequest) -> None:
        config, prompt = self.config, len(request.token_ids)
        if not prompt:
            raise InvalidRequestError("the prompt is empty", field="input_token_ids")
        if request.guide is not None:
            raise unsupported(f"guided decoding by {request.guide[0]}", "guided_decoding")
        if request.bad:
            raise unsupported("bad words", "bad")
        if request.logit_bias:
            raise unsupported("logit_bias", "logit_bias")
        if request.prompt_logprobs is not None:
            raise unsupported("logprobs of the prompt", "prompt_logprobs")
        if prompt > config.max_input_len:
            raise InvalidRequestError(
                f"the prompt has {prompt} tokens, the limit is {config.max_input_len} "
                f"({config.length_key})",
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
                f"the limit of {config.max_seq_len} ({config.length_key})",
                field="max_tokens",
            )
        banned = banned_tokens(request, vocab_size=config.vocab_size, ends=config.end_tokens)
        if len(banned) >= config.vocab_size:
            raise InvalidRequestError("no token is left to generate", field="bad_token_ids")
        if not 0 <= (request.seed or 0) < 2**64:
            raise InvalidRequestError("seed must fit 64 bits", field="seed")
        if request.request_id in self._live:
            raise request_id_in_use(request.request_id)


def request_id_in_use(request_id: str) -> InvalidRequestError:
    return InvalidRequestError(f"request id {request_id!r} is in use", field="request_id")
