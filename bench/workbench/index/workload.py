"""What a trace asks of an index: stores, matches and removals, made before they are timed."""

from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ....indexer.hashing import block_hashes, sequence_hashes
from ...traces import TraceRequest, token_ids

Hashes = NDArray[np.uint64]

STICKY_TOKENS = 1024  # a prompt's worker is chosen by the prefix up to here
SPILL = 0.25  # of the requests go to any worker, so that prefixes live on several


@dataclass(frozen=True)
class Prompt:
    """The hashes of a request's full blocks: it is looked up by the local ones."""

    local_hashes: Hashes
    sequence_hashes: Hashes


@dataclass(frozen=True)
class Stored:
    """`worker` now holds these blocks, which follow `parent`, or nothing."""

    worker: int
    parent: int | None
    sequence_hashes: Hashes
    local_hashes: Hashes


@dataclass(frozen=True)
class Removed:
    """`worker` has evicted these blocks, the latter of a prefix before the former."""

    worker: int
    sequence_hashes: Hashes


@dataclass(frozen=True)
class Workload:
    """The phases of one measurement.

    `stores` fills caches without bound; `prompts` are then looked up; `removals` takes the younger
    half away, leaves first. `mixed` starts anew with bounded caches: for each request a look-up,
    the evictions that its blocks force, and their store.
    """

    prompts: Sequence[Prompt]
    stores: Sequence[Stored]
    removals: Sequence[Removed]
    mixed: Sequence[Prompt | Removed | Stored]


class CacheEvents:
    """Numbers operations and encodes them as the JSON that Dynamo's apply_event takes."""

    def __init__(self) -> None:
        self._next_id = 0

    def store(self, op: Stored) -> tuple[int, bytes]:
        blocks = [
            {"block_hash": sequence_hash, "tokens_hash": local_hash}
            for sequence_hash, local_hash in zip(
                op.sequence_hashes.tolist(), op.local_hashes.tolist(), strict=True
            )
        ]
        return self._event(op.worker, {"stored": {"parent_hash": op.parent, "blocks": blocks}})

    def remove(self, op: Removed) -> tuple[int, bytes]:
        return self._event(op.worker, {"removed": {"block_hashes": op.sequence_hashes.tolist()}})

    def _event(self, worker: int, data: Mapping[str, Any]) -> tuple[int, bytes]:
        self._next_id += 1
        event = {"event_id": self._next_id, "data": data, "dp_rank": 0}
        return worker, msgspec.json.encode(event)


def hash_prompts(requests: Iterable[TraceRequest], block_size: int) -> list[Prompt]:
    """The prompts of at least one full block, hashed as the router and the engines hash them."""
    prompts = []
    for request in requests:
        local_hashes = block_hashes(token_ids(request, 32_000), block_size)
        if len(local_hashes):
            prompts.append(Prompt(local_hashes, sequence_hashes(local_hashes)))
    return prompts


def plan_workload(
    prompts: Sequence[Prompt], *, block_size: int, workers: int, cache_blocks: int, seed: int = 7
) -> Workload:
    """Send every prompt to a worker, and note what its cache then says.

    `cache_blocks` is the size of one worker's cache in the mixed phase; a prompt longer than that
    is cut there, as no engine could hold it.
    """
    rng = Random(seed)
    placed = [
        _place(prompt, max(1, STICKY_TOKENS // block_size), workers, rng) for prompt in prompts
    ]
    stores: list[Stored] = []
    held: list[set[int]] = [set() for _ in range(workers)]
    mixed: list[Prompt | Removed | Stored] = []
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(workers)]
    for prompt, worker in zip(prompts, placed, strict=True):
        hashes = prompt.sequence_hashes.tolist()
        overlap = _known(hashes, held[worker])
        held[worker].update(hashes[overlap:])
        if overlap < len(hashes):
            stores.append(_stored(worker, prompt, overlap, len(hashes)))
        mixed.append(prompt)
        mixed.extend(_run(caches[worker], worker, prompt, hashes, cache_blocks))
    younger = reversed(stores[len(stores) // 2 :])
    removals = [
        Removed(store.worker, np.ascontiguousarray(store.sequence_hashes[::-1]))
        for store in younger
    ]
    return Workload(prompts, stores, removals, mixed)


def _place(prompt: Prompt, sticky: int, workers: int, rng: Random) -> int:
    if rng.random() < SPILL:
        return rng.randrange(workers)
    return int(prompt.sequence_hashes[min(sticky, len(prompt.sequence_hashes)) - 1]) % workers


def _known(hashes: Sequence[int], held: Container[int]) -> int:
    overlap = 0
    for block in hashes:
        if block not in held:
            break
        overlap += 1
    return overlap


def _stored(worker: int, prompt: Prompt, start: int, end: int) -> Stored:
    parent = int(prompt.sequence_hashes[start - 1]) if start else None
    return Stored(worker, parent, prompt.sequence_hashes[start:end], prompt.local_hashes[start:end])


def _run(
    cache: OrderedDict[int, None], worker: int, prompt: Prompt, hashes: list[int], capacity: int
) -> Iterable[Removed | Stored]:
    """What an engine with an LRU cache reports when it runs the prompt."""
    hashes = hashes[:capacity]
    overlap = _known(hashes, cache)
    # Released leaf first, so that a prefix outlives what hangs below it.
    for block in reversed(hashes):
        cache[block] = None
        cache.move_to_end(block)
    evicted = [cache.popitem(last=False)[0] for _ in range(len(cache) - capacity)]
    if evicted:
        yield Removed(worker, np.array(evicted, np.uint64))
    if overlap < len(hashes):
        yield _stored(worker, prompt, overlap, len(hashes))
