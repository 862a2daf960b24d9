"""Sequence: a request inside a mock engine, with its output and block hashes."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from ...indexer.hashing import block_hashes, sequence_hashes
from ...workers.handoffs import RemotePrefillHint
from ..serving import CachedBlock, EngineRequest
from ..transfer import Offer
from .config import EngineConfig
from .sampling import plan_output

_new_block: Callable[[Iterable[Any]], CachedBlock] = partial(tuple.__new__, CachedBlock)
"""CachedBlock._make, in a fifth of the time: a prompt has many blocks."""


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
        "offer",
        "metadata",
        "hint",
        "_tokens",
        "_block_bytes",
    )

    def __init__(self, request: EngineRequest, config: EngineConfig) -> None:
        block_size = config.block_size
        plan = plan_output(
            request,
            vocab_size=config.vocab_size,
            ends=config.end_tokens,
            context=config.max_model_len,
        )
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
        self.offer: Offer | None = None  # of its prompt's blocks, by the engine that computed it
        self.metadata: bytes | None = None  # that engine's, if it is in no store
        self.hint: RemotePrefillHint | None = None  # its prompt comes through a prefill queue
        self._tokens = tokens.astype("<u4", copy=False).tobytes()
        self._block_bytes = 4 * block_size

    def prompt_hashes(self) -> list[int]:
        """Of the prompt's blocks; behind the full ones, of what is in the partial one."""
        tokens, size = self.prompt_len, self._block_bytes // 4
        full, rest = divmod(tokens, size)
        hashes: list[int] = self.sequence_hashes[:full].tolist()
        if rest:
            last = np.frombuffer(self._tokens, "<u4", rest, 4 * full * size)
            local = block_hashes(
                last,
                rest,
                lora_name=self.request.lora_name,
                cache_namespace=self.request.cache_namespace,
            )
            chain = np.concatenate([self.local_hashes[:full], local])
            hashes.append(int(sequence_hashes(chain)[-1]))
        return hashes

    def cached_blocks(self, first: int, count: int) -> list[CachedBlock]:
        """So many full blocks, from block `first` on, as the cache announces them."""
        end, size, tokens = first + count, self._block_bytes, self._tokens
        parent = int(self.sequence_hashes[first - 1]) if first else None
        hashes: list[int] = self.sequence_hashes[first:end].tolist()
        parts = (
            hashes,
            (parent, *hashes),
            self.local_hashes[first:end].tolist(),
            [tokens[start : start + size] for start in range(first * size, end * size, size)],
            repeat(self.request.lora_name),
            repeat(self.request.cache_namespace),
        )
        return list(map(_new_block, zip(*parts, strict=False)))
