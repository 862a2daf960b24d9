"""ServedEngine: what an engine must be able to do to be served as a worker."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from ...base.errors import WorkerError
from ...indexer.wire import StorageTier
from ...workers.dialects import TokenLogprob
from ...workers.engine_facts import EngineFacts
from .kv_events import CachedBlock, KvEvent
from .request import EngineRequest

OnEvents: TypeAlias = Callable[[int, list[KvEvent]], None]
"""Hears of a data-parallel rank's cache events, in order."""


class EngineUnavailableError(WorkerError):
    """The engine starts, stops or is gone: another worker may go on with its requests."""


class AnswerPart(NamedTuple):
    """What an engine has generated since the part before."""

    tokens: list[int]
    answer: int = 0
    """the number of the answer that it belongs to, of those to one request"""
    cached_tokens: int = 0
    """of the prompt, found in the cache"""
    logprobs: Sequence[TokenLogprob] = ()
    """of the tokens, one each, if the request asks for them"""
    finish_reason: str = ""
    """stop, length, cancelled and the like: the answer ends with this part"""
    matched_stop: int | str | None = None
    """the stop token or string that ended it"""
    handoff: bytes | None = None
    """of a prefill worker, with the last part: what a decode worker needs to go on, JSON"""


class Answer(Protocol):
    """The parts of a request's answers, as they come. `aclose` in any case: it aborts what is not
    done. InvalidRequestError, NoWorkersError (the engine has all it can take) or WorkerError."""

    def __aiter__(self) -> AsyncIterator[AnswerPart]: ...
    async def __anext__(self) -> AnswerPart: ...
    async def aclose(self) -> None: ...


class EngineLoad(NamedTuple):
    """How busy a rank is. 0 where the engine does not say."""

    running: int = 0
    waiting: int = 0
    active_blocks: int = 0
    """that requests use"""
    inactive_blocks: int = 0
    """cached, and used by none"""


@runtime_checkable
class PrefetchingEngine(Protocol):
    """A ServedEngine that can load blocks from its lower tiers ahead of a request."""

    @property
    def prefetches(self) -> bool:
        """Whether it does."""
        ...

    async def prefetch(self, request: EngineRequest) -> int:
        """Load what lower tiers have of a request that is expected: how many blocks."""
        ...


@runtime_checkable
class ClearingEngine(Protocol):
    """A ServedEngine that can empty its cache. It tells so by its events."""

    async def clear_kv_blocks(self) -> None:
        """Forget all cached blocks, of all ranks and tiers. WorkerError, and nothing is forgotten,
        while requests use some, or if the engine does not run."""
        ...


@runtime_checkable
class TransferringEngine(Protocol):
    """A ServedEngine whose blocks other engines read or write."""

    def transfer_metadata(self) -> Mapping[str, bytes]:
        """What they need for it, by the id of this incarnation of a rank; once it is started."""
        ...


class ServedEngine(Protocol):
    """One engine, all its data-parallel ranks, on the loop that started it."""

    @property
    def facts(self) -> EngineFacts:
        """Known once it is started. Settings: kv_block_size, and total_kv_blocks, max_num_seqs and
        max_num_batched_tokens where it says them, each of a rank."""
        ...

    @property
    def dp_size(self) -> int: ...

    @property
    def lower_blocks(self) -> int:
        """Blocks in the tiers below the device's, of a rank."""
        ...

    @property
    def status(self) -> str:
        """The answer to HealthCheck: OK, or what is wrong."""
        ...

    async def start(self, on_events: OnEvents) -> None:
        """Be ready for requests. ConfigError or WorkerError, saying why, if it cannot be."""
        ...

    def generate(self, request: EngineRequest) -> Answer: ...

    async def abort(self, request_id: str) -> bool:
        """End a request early, all its answers; False if there is none of that id."""
        ...

    def cached_blocks(self, rank: int, tier: StorageTier) -> Iterable[CachedBlock]:
        """A rank's full blocks in a tier, parents first, as its events until now say."""
        ...

    def load(self, rank: int) -> EngineLoad: ...

    async def lost(self) -> str:
        """Return, saying why, once it stopped on its own. Its requests end with
        EngineUnavailableError."""
        ...

    async def stop(self) -> None:
        """Stop at once; requests still here end as cancelled. Idempotent, and the end of a start
        that failed too."""
        ...
