"""Whether an index claims of mock engines in this process what they hold."""

from collections.abc import Collection, Iterable, Sequence

from support.adversity.engine_cache import leading_blocks

from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.hashing import block_hashes
from dynamo_router.indexer.source import SourceState
from dynamo_router.runtime.identity import WorkerWithDpRank
from dynamo_router.workers.mocker.server import MockServer


def untrue(
    index: EventIndex,
    engines: Iterable[MockServer],
    prompts: Collection[Sequence[int]],
    block_size: int,
) -> str:
    """A word on what is wrong; empty if each engine's source is exact, with as many blocks as it
    holds, and as many of each prompt."""
    sources = {source.worker.worker_id: source for source in index.sources()}
    scores = [index.scores(block_hashes(list(prompt), block_size)) for prompt in prompts]
    for engine in engines:
        held = {block.block_hash % 2**64 for block in engine.engine.cached_blocks()}
        source = sources.get(engine.worker_id)
        if source is None or source.state is not SourceState.EXACT:
            return f"{engine.worker_id} is {source and source.state}"
        if source.blocks != len(held):
            return f"{engine.worker_id} holds {len(held)} blocks, the index has {source.blocks}"
        for prompt, found in zip(prompts, scores, strict=True):
            expected = leading_blocks(list(prompt), held, block_size)
            claimed = found.get(WorkerWithDpRank(engine.worker_id, 0), 0)
            if claimed != expected:
                return f"{engine.worker_id} holds {expected} blocks of a prompt, not {claimed}"
    return ""
