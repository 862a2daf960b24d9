"""What engines found in their caches, where the ids of prompts do not say where that came from.

A prompt that begins as an earlier one of its engine has to goes on with that: it is in that cache,
and in no other. What the earlier requests do not explain is taken to be in every cache.
"""

from collections.abc import Hashable, Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from ...bench.simulation import SampledRequest

LOOKED_AT = 8
"""Earlier prompts of an engine and a length, the newest first: more cost more than they say."""


def continued(
    ids: Sequence[NDArray[np.uint64]],
    cached_blocks: Sequence[int | None],
    engines: Sequence[Hashable],
    lengths: Sequence[tuple[int, int]],
) -> list[NDArray[np.uint64]]:
    """The ids of prompts, in the order of arrival, of which as much as was found in a cache, and
    not brought by earlier ones, begins as an earlier prompt of the same engine does.

    `lengths`: whole blocks of each prompt, and with its answer: that is what a next turn finds.
    Each prompt goes on once. `engines`: None where it is unknown.
    """
    seen, renamed = set[int](), dict[int, int]()
    ends: dict[tuple[Hashable, int], list[int]] = {}
    gone_on, found = set[int](), list[NDArray[np.uint64]]()
    for place, (whole, cached, engine) in enumerate(zip(ids, cached_blocks, engines, strict=True)):
        own: list[int] = whole.tolist()
        own = [renamed.get(each, each) for each in own]
        known = _leading(own, seen)
        if cached is not None and engine is not None and known < cached <= len(own):
            alike = ends.get((engine, cached), [])
            while alike and alike[-1] in gone_on:
                alike.pop()
            for earlier in alike[: -LOOKED_AT - 1 : -1]:
                begins = found[earlier][:cached].tolist()
                if earlier not in gone_on and begins[:known] == own[:known]:
                    gone_on.add(earlier)
                    renamed.update(zip(own[known:cached], begins[known:], strict=False))
                    own[: len(begins)] = begins
                    break
        seen.update(own)
        found.append(np.array(own, np.uint64))
        for length in {*lengths[place]}:
            ends.setdefault((engine, length), []).append(place)
    return found


def warmed(
    requests: Sequence[SampledRequest], cached_blocks: Sequence[int | None]
) -> list[SampledRequest]:
    """The requests, which come in this order, with as many blocks found in caches as were measured.

    `cached_blocks`: of each prompt's leading blocks; None: unknown. What earlier requests bring is
    found by itself. Where that is less than was measured in all, beginnings of those that lack most
    of it become one that all have in common, so that it costs a prefill once, and is read as ever.
    """
    seen, lacks, lead = set[int](), list[int](), list[int]()
    short = 0
    for request, cached in zip(requests, cached_blocks, strict=True):
        ids: list[int] = request.ids.tolist()
        lead.append(_leading(ids, seen))
        lacks.append(0 if cached is None else max(0, min(cached, len(ids)) - lead[-1]))
        short += 0 if cached is None else cached - lead[-1]
        seen.update(ids)
    if short <= 0 or not any(lacks):
        return list(requests)
    share, due = min(1.0, short / sum(lacks)), 0.0
    common, found = set[int](), list[SampledRequest]()
    for request, known, lack in zip(requests, lead, lacks, strict=True):
        ids = request.ids.tolist()
        due += share * lack
        if blocks := min(lack, round(due)):
            due -= blocks
            common.update(ids[: known + blocks])
        found.append(_beginning_in_common(request, ids, common))
    return found


def _beginning_in_common(
    request: SampledRequest, ids: Sequence[int], common: set[int]
) -> SampledRequest:
    blocks = _leading(ids, common)
    if not blocks:
        return request
    changed: NDArray[np.uint64] = request.ids.copy()
    changed[:blocks] = np.iinfo(np.uint64).max - np.arange(blocks, dtype=np.uint64)
    return request._replace(ids=changed)


def _leading(ids: Sequence[int], among: set[int]) -> int:
    """How many ids from the first on are among those."""
    return sum(1 for _ in takewhile(among.__contains__, ids))
