"""ServedMock: a mock engine as a ServedEngine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, Self

import msgspec

from ...base.clock import Clock
from ...indexer.wire import StorageTier
from ...workers.dialects import TokenLogprob
from ...workers.handoffs import RemotePrefillHint, read_hint
from ..serving import (
    AnswerPart,
    CachedBlock,
    EngineLoad,
    EngineRequest,
    EngineUnavailableError,
    KvEvent,
    OnEvents,
)
from .config import EngineConfig
from .disaggregation import DisaggregationRole
from .dp_engine import DataParallelEngine
from .handovers import BlockMoves
from .live import NotBroughtError, TokenStream, first_news
from .own_model import facts_of
from .sampling import logprob_of
from .sequence import Sequence


class PromptDivider(Protocol):
    """Decides which prompts of an engine others compute."""

    async def divided(
        self, request: EngineRequest
    ) -> tuple[EngineRequest, RemotePrefillHint | None]:
        """A request as its engine runs it; with a hint its prompt comes through a queue."""
        ...


class ServedMock:
    """The ranks of one mock engine, and what clients hear of them."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        speedup_ratio: float,
        clock: Clock,
        role: Callable[[], DisaggregationRole],
        transfer_s: Callable[[int], float] = lambda tokens: 0.0,
        moves: BlockMoves | None = None,
    ) -> None:
        """`role`: known once it is served. `transfer_s`: see LiveEngine. `moves`: how its blocks
        are really moved, if they are."""
        self.role = role
        self.moves = moves
        self.queue: PromptDivider | None = None
        """of a decode engine that takes part in a prefill queue"""
        self._config = config
        self.ranks = DataParallelEngine(
            config,
            speedup_ratio=speedup_ratio,
            clock=clock,
            on_events=self._tell,
            transfer_s=transfer_s,
        )
        self.facts = facts_of(config)
        self.dp_size = config.dp_size
        self.lower_blocks = config.tiers.host_blocks + config.tiers.disk_blocks
        self._on_events: OnEvents | None = None
        self._several: dict[str, list[str]] = {}
        """by the id of a request for several answers: the ids of the engine's requests"""

    @property
    def status(self) -> str:
        failure = self.ranks.failure
        if self.ranks.starting:
            return "starting"
        return "OK" if failure is None else f"failed: {failure}"

    async def start(self, on_events: OnEvents) -> None:
        self._on_events = on_events
        if self.moves is not None:
            self.moves.open(self.ranks.ranks)
        self.ranks.start()

    def transfer_metadata(self) -> dict[str, bytes]:
        """See TransferringEngine."""
        return {} if self.moves is None else self.moves.metadata()

    @property
    def prefetches(self) -> bool:
        return self._config.tiers.prefetch

    async def prefetch(self, request: EngineRequest) -> int:
        await self.ranks.awake()
        return self.ranks.prefetch(request, request.dp_rank)

    async def clear_kv_blocks(self) -> None:
        """See ClearingEngine."""
        await self.ranks.awake()
        self.ranks.clear()

    def generate(self, request: EngineRequest) -> "MockAnswer":
        return MockAnswer(self, request)

    def submit(self, request: EngineRequest) -> list[TokenStream]:
        """A stream for each answer, by seeds that follow each other. `release` them in any case."""
        ranks, rank = self.ranks, request.dp_rank
        if request.answers == 1:
            return [ranks.submit(request, rank)]
        if rank is None:  # they share the prompt's cache
            rank = ranks.least_loaded
        name, seed = request.request_id, request.seed or 0
        others = [
            replace(request, request_id=f"{name}\x1f{nth}", seed=(seed + nth) % 2**64)
            for nth in range(1, request.answers)
        ]
        streams: list[TokenStream] = []
        try:
            for each in (request, *others):
                streams.append(ranks.submit(each, rank))
        except BaseException:
            self.release(streams)
            raise
        self._several[name] = [each.request_id for each in others]
        return streams

    def submit_again(self, request: EngineRequest) -> list[TokenStream]:
        """One whose prompt did not come, to be computed here. It goes by another id, as the first
        try may have blocks still."""
        name = request.request_id
        again = replace(request, request_id=f"{name}\x1flocal", phase=None, handoff=None)
        stream = self.ranks.submit(again, request.dp_rank)
        self._several[name] = [again.request_id]
        return [stream]

    def release(self, streams: list[TokenStream], request_id: str = "") -> None:
        """Their reader goes away: what is not finished is aborted."""
        if request_id or streams:
            name = request_id or streams[0].sequence.request.request_id
            self._several.pop(name, None)
        for stream in streams:
            self.ranks.release(stream)

    async def abort(self, request_id: str) -> bool:
        named = (request_id, *self._several.get(request_id, ()))
        return any([self.ranks.abort(each) for each in named])

    def cached_blocks(self, rank: int, tier: StorageTier) -> list[CachedBlock]:
        return list(self.ranks.engines[rank].cached_blocks(tier))

    def load(self, rank: int) -> EngineLoad:
        engine = self.ranks.engines[rank]
        return EngineLoad(
            engine.running, engine.waiting, engine.active_blocks, engine.inactive_blocks
        )

    async def lost(self) -> str:
        await self.ranks.failed.wait()
        return self.ranks.failure or ""

    async def stop(self) -> None:
        await self.ranks.stop()
        if self.moves is not None:
            await self.moves.close()

    def _tell(self, rank: int, events: list[KvEvent]) -> None:
        if self._on_events is not None:
            self._on_events(rank, events)


class MockAnswer:
    """The answers to one request, token by token."""

    def __init__(self, engine: ServedMock, request: EngineRequest) -> None:
        self._engine, self._request = engine, request
        self._streams: list[TokenStream] | None = None
        self._open: list[_OneAnswer] = []
        self._role: DisaggregationRole | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerPart:
        if self._streams is None:
            await self._engine.ranks.awake()
            role = self._engine.role()
            request, hint = self._request, None
            if not role.hands_over:
                request, hint = await self._divided(request)
            if hint is None:
                request = role.take(request)
            self._streams = self._engine.submit(request)
            self._role = role
            if hint is not None:
                self._streams[0].sequence.hint = hint
            elif not role.hands_over and request.handoff is not None:
                given = role.read_handoff(request.handoff, len(request.token_ids))
                for stream in self._streams:
                    stream.sequence.offer = given.offer
                    stream.sequence.metadata = given.metadata
            config = self._engine.ranks.config
            self._open = [
                _OneAnswer(stream, index, config) for index, stream in enumerate(self._streams)
            ]
        while self._open:
            for answer in self._open:
                if isinstance(answer.stream.failure, NotBroughtError):
                    self._run_locally()
                    break
                part = answer.next()
                if part is None:
                    continue
                if part.finish_reason:
                    if self._engine.ranks.failure is not None:
                        raise EngineUnavailableError(self._engine.ranks.failure)
                    self._open.remove(answer)
                    part = part._replace(handoff=self._handoff(answer.stream.sequence))
                return part
            else:
                await first_news([answer.stream for answer in self._open])
        raise StopAsyncIteration

    async def aclose(self) -> None:
        if self._streams is not None:
            self._engine.release(self._streams, self._request.request_id)

    async def _divided(
        self, request: EngineRequest
    ) -> tuple[EngineRequest, RemotePrefillHint | None]:
        """See PromptDivider. An engine in no queue computes what a router wants queued."""
        queue = self._engine.queue
        if queue is not None:
            return await queue.divided(request)
        if request.handoff is not None and read_hint(request.handoff) is not None:
            return replace(request, phase=None, handoff=None), None
        return request, None

    def _run_locally(self) -> None:
        """The prompt did not come: this engine computes it."""
        self._streams = self._engine.submit_again(self._request)
        config = self._engine.ranks.config
        self._open = [_OneAnswer(stream, 0, config) for stream in self._streams]

    def _handoff(self, sequence: Sequence) -> bytes | None:
        """What a prefill worker hands over."""
        role, moves = self._role, self._engine.moves
        if role is None or not role.hands_over:
            return None
        if moves is None:
            return msgspec.json.encode(role.handoff(sequence.prompt_len))
        if sequence.offer is None:
            return None
        metadata = moves.unstored_metadata(sequence.offer.engine_id)
        handoff = role.handoff(sequence.prompt_len, sequence.offer, metadata)
        return msgspec.json.encode(handoff)


class _OneAnswer:
    """One of the answers to a request, and how much of it was sent."""

    def __init__(self, stream: TokenStream, index: int, config: EngineConfig) -> None:
        self.stream = stream
        self._index = index
        self._sent = 0
        request = stream.sequence.request
        self._whole = not request.streaming
        self._logprob = None
        if request.logprobs is not None:
            size, ends = config.vocab_size, config.end_tokens
            self._logprob = logprob_of(request, vocab_size=size, ends=ends)

    def next(self) -> AnswerPart | None:
        """What is ready: one token, if it is streamed, or all and why it ended; None: nothing."""
        stream, sent = self.stream, self._sent
        sequence = stream.sequence
        ready = min(stream.ready, sequence.visible)
        if sent < ready and not self._whole:
            self._sent += 1
            return self._part(sequence.output[sent : sent + 1])
        if not stream.done:
            return None
        if stream.failure is not None:
            raise stream.failure
        self._sent = ready
        part = self._part(sequence.output[sent:ready])
        if stream.aborted:
            return part._replace(finish_reason="cancelled")
        return part._replace(
            finish_reason=sequence.finish_reason, matched_stop=sequence.matched_stop
        )

    def _part(self, tokens: list[int]) -> AnswerPart:
        cached = self.stream.sequence.cached_tokens or 0
        if self._logprob is None:
            return AnswerPart(tokens, self._index, cached)
        logprobs = [TokenLogprob(token, self._logprob) for token in tokens]
        return AnswerPart(tokens, self._index, cached, logprobs)
