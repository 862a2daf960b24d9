"""Prefixes that engines held and a scenario does not bring: taken to be in every cache."""

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from ...bench.simulation import SampledRequest


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
        lead.append(sum(1 for _ in takewhile(seen.__contains__, ids)))
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
    blocks = sum(1 for _ in takewhile(common.__contains__, ids))
    if not blocks:
        return request
    changed: NDArray[np.uint64] = request.ids.copy()
    changed[:blocks] = np.iinfo(np.uint64).max - np.arange(blocks, dtype=np.uint64)
    return request._replace(ids=changed)
