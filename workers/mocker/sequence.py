"""Sequence: a request inside a mock engine, with its output and block hashes."""

import numpy as np

from ...indexer.hashing import block_hashes, sequence_hashes
from ..serving import CachedBlock, EngineRequest
from .sampling import plan_output


class Sequence:
    """A request inside the engine. The engine advances it; others only read.

    Its output is planned when it arrives, so the blocks it will ever fill are hashed once, and
    a step has only counters to move.
    """

    __slots__ = (
        "request",
        "prompt_len",
        "output",
        "visible",
        "finish_reason",
        "matched_stop",
        "local_hashes",
        "sequence_hashes",
        "generated",
        "cached_tokens",
        "preemptions",
        "finished",
        "_tokens",
        "_block_bytes",
    )

    def __init__(
        self, request: EngineRequest, *, block_size: int, vocab_size: int, ends: frozenset[int]
    ) -> None:
        plan = plan_output(request, vocab_size=vocab_size, ends=ends)
        tokens = np.concatenate([request.token_ids, plan.tokens])
        local = block_hashes(
            tokens,
            block_size,
            lora_name=request.lora_name,
            cache_namespace=request.cache_namespace,
        )
        self.request = request
        self.prompt_len = len(request.token_ids)
        self.output: list[int] = plan.tokens.tolist()
        self.visible = plan.visible  # tokens of `output` that the client gets to see
        self.finish_reason = plan.finish_reason
        self.matched_stop = plan.matched_stop
        self.local_hashes = local  # of every block it may fill
        self.sequence_hashes = sequence_hashes(local)
        self.generated = 0
        self.cached_tokens: int | None = None  # prompt tokens found in the cache when it first ran
        self.preemptions = 0
        self.finished = False
        self._tokens = tokens.astype("<u4", copy=False).tobytes()
        self._block_bytes = 4 * block_size

    def cached_block(self, position: int) -> CachedBlock:
        """Full block `position` as the cache announces it."""
        start = position * self._block_bytes
        return CachedBlock(
            int(self.sequence_hashes[position]),
            int(self.sequence_hashes[position - 1]) if position else None,
            int(self.local_hashes[position]),
            self._tokens[start : start + self._block_bytes],
            self.request.lora_name,
            self.request.cache_namespace,
        )
