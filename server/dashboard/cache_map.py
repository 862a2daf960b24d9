"""Who holds what, for a picture: the branches of the prefix tree whose blocks are held most."""

from typing import Any

from ...base.clock import Clock
from ...indexer.prefix_index import CacheBranch, PrefixIndex
from ..loop_share import TimeShare
from .request_journal import worker_key

SHARE = 0.005
LEAST_S = 2.0
LOOKED_AT = 2048
SHOWN = 320
"""Branches of a picture: more of them would be thinner than a pixel."""


class CacheMap:
    """The picture as it was at the last question; made anew in at most SHARE of the time."""

    def __init__(self, index: PrefixIndex, clock: Clock) -> None:
        self._index = index
        self._now = clock.now
        self._share = TimeShare(SHARE, least_s=LEAST_S)
        self._latest: dict[str, Any] = {"at": 0.0, "branches": []}

    def read(self) -> dict[str, Any]:
        now = self._now()
        if self._share.is_due(now):
            self._share.begin()
            branches = self._index.branches(LOOKED_AT, SHOWN)
            self._latest = {"at": now, "branches": [_shown(branch) for branch in branches]}
            self._share.spent(self._share.lap(), now)
        return self._latest


def _shown(branch: CacheBranch) -> dict[str, Any]:
    return {
        "parent": branch.parent,
        "begin": branch.begin,
        "blocks": branch.blocks,
        "hash": f"{branch.local_hash:016x}",
        "holders": branch.holders,
        "first": [[worker_key(worker), blocks] for worker, blocks in branch.first_holders],
        "more": branch.more,
    }
