"""Whether an index claims of mock engines in this process what they hold."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import gt, ne

from support.adversity.engine_cache import leading_blocks

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.engines.mocker.server import MockServer
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.hashing import block_hashes
from dynamo_router.indexer.source import SourceState, SourceStatus


def untrue(
    index: EventIndex,
    engines: Iterable[MockServer],
    prompts: Collection[Sequence[int]],
    block_size: int,
    *,
    exact: bool = True,
) -> str:
    """A word on what is wrong; empty if each engine's source is exact (where that is asked for),
    with as many blocks as it holds, and as many of each prompt."""
    for engine, source, found in _claims(index, engines, prompts, block_size):
        if source is None or (exact and source.state is not SourceState.EXACT):
            return f"{engine.worker_id} is {source and source.state}"
        if word := _compared(engine, source.blocks, prompts, found, block_size, ne):
            return word
    return ""


def overclaimed(
    index: EventIndex,
    engines: Iterable[MockServer],
    prompts: Collection[Sequence[int]],
    block_size: int,
) -> str:
    """A word on what the index claims of engines beyond what they hold; empty if nothing."""
    for engine, source, found in _claims(index, engines, prompts, block_size):
        blocks = 0 if source is None else source.blocks
        if word := _compared(engine, blocks, prompts, found, block_size, gt):
            return word
    return ""


def _compared(
    engine: MockServer,
    blocks: int,
    prompts: Iterable[Sequence[int]],
    found: Iterable[int],
    block_size: int,
    wrong: Callable[[int, int], bool],
) -> str:
    """A word on a figure of the index that is `wrong` beside the engine's; empty if none is."""
    held = _held(engine)
    if wrong(blocks, len(held)):
        return f"{engine.worker_id} holds {len(held)} blocks, the index has {blocks}"
    for prompt, claimed in zip(prompts, found, strict=True):
        expected = leading_blocks(list(prompt), held, block_size)
        if wrong(claimed, expected):
            return f"{engine.worker_id} holds {expected} blocks of a prompt, not {claimed}"
    return ""


def _claims(
    index: EventIndex,
    engines: Iterable[MockServer],
    prompts: Collection[Sequence[int]],
    block_size: int,
) -> Iterator[tuple[MockServer, SourceStatus | None, list[int]]]:
    """Of each engine its source, and the leading blocks of each prompt that the index claims."""
    sources = {source.worker.worker_id: source for source in index.sources()}
    scores = [index.scores(block_hashes(list(prompt), block_size)) for prompt in prompts]
    for engine in engines:
        worker = WorkerWithDpRank(engine.worker_id, 0)
        yield engine, sources.get(engine.worker_id), [found.get(worker, 0) for found in scores]


def _held(engine: MockServer) -> set[int]:
    return {block.block_hash % 2**64 for block in engine.engine.cached_blocks()}
