"""RequestBodies: more of the last minutes' requests, session by session, for a simulation.

Sessions stay whole and follow each other as they did. What one session alone has of its prompts
is made new in each copy, what sessions share stays: so the hit rate of a copy comes out of caches,
as it did out of the requests. What engines say they found in caches beyond that is found, too.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...bench.simulation import SampledRequest
from ...bench.traces import TraceRequest, build_tree, columns_of, find_turns, mix_values
from ..observation import ObservedRequest
from .warmth import continued, warmed

MOST_TOKENS = 1 << 20
"""A record that says more is not believed."""


class RequestBodies:
    """The requests of a window of time. ValueError if there are none.

    One that has not ended gets the output of another, drawn by `seed`.
    """

    def __init__(
        self,
        requests: Sequence[ObservedRequest],
        block_size: int,
        *,
        seed: int = 0,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        """`most_tokens`: of a prompt, and of an answer; longer ones are cut to it."""
        if not requests:
            raise ValueError("there are no requests to make more of")
        requests = [
            replace(each, prompt_tokens=most_tokens, block_ids=())
            if each.prompt_tokens > most_tokens
            else each
            for each in requests
        ]
        rng = np.random.default_rng(seed)
        known = [each.output_tokens for each in requests if each.output_tokens is not None] or [1]
        drawn = rng.integers(0, len(known), len(requests)).tolist()
        self.outputs = [
            min(
                most_tokens,
                max(1, known[drawn[place]] if each.output_tokens is None else each.output_tokens),
            )
            for place, each in enumerate(requests)
        ]
        self._requests = requests
        self._cached = [_cached_blocks(each, block_size) for each in requests]
        self._ids = continued(
            [_ids(each, block_size, place) for place, each in enumerate(requests)],
            self._cached,
            [each.worker_id for each in requests],
            [
                (each.prompt_tokens // block_size, (each.prompt_tokens + output) // block_size)
                for each, output in zip(requests, self.outputs, strict=True)
            ],
        )
        self._shared = self._shared_blocks(block_size)

    def __len__(self) -> int:
        return len(self._requests)

    def as_seen(self, first: int) -> list[SampledRequest]:
        """The requests from that place on, as they were."""
        found = [self._request(place, self._ids[place]) for place in range(first, len(self))]
        return warmed(found, self._cached[first:])

    def draw(self, count: int, seed: int) -> list[SampledRequest]:
        """`count` requests of new sessions, in the order of arrival, from a place of the window
        drawn by `seed`."""
        size = len(self)
        start = int(np.random.default_rng(seed).integers(size))
        found = []
        for number in range(start, start + count):
            copy, place = divmod(number, size)
            ids, shared = self._ids[place].copy(), self._shared[place]
            salt = np.array([seed << 20 | copy], np.uint64)
            mix_values(salt)  # small numbers would turn one small id into another
            own = ids[shared:] ^ salt
            mix_values(own)
            ids[shared:] = own
            found.append(self._request(place, ids))
        return warmed(found, [self._cached[(start + n) % size] for n in range(count)])

    def _request(self, place: int, ids: NDArray[np.uint64]) -> SampledRequest:
        return SampledRequest(self._requests[place].prompt_tokens, self.outputs[place], ids)

    def _shared_blocks(self, block_size: int) -> list[int]:
        """Leading blocks of each prompt that another session has, too."""
        lines = [
            TraceRequest(each.arrival_s * 1e3, each.prompt_tokens, 1, tuple(ids.tolist()))
            for each, ids in zip(self._requests, self._ids, strict=True)
        ]
        tree = build_tree(columns_of(lines, trace_block_size=block_size))
        sessions = [
            (place if each.session is None else each.session)
            for place, each in enumerate(self._requests)
        ]
        if all(each.session is None for each in self._requests):
            sessions = list(find_turns(tree).sessions.tolist())
        sizes = np.array([*Counter(sessions).values()])
        self.dispersion = float((sizes**2).sum() / sizes.sum())
        """of counts of arrivals, beside their mean: sessions come by chance, each whole"""
        # A node that requests of several sessions have, and so all before it.
        first: dict[int, int | str] = {}
        common = np.zeros(len(tree), np.bool_)
        offsets, nodes = tree.columns.offsets.tolist(), tree.nodes.tolist()
        for place, session in enumerate(sessions):
            for node in nodes[offsets[place] : offsets[place + 1]]:
                if first.setdefault(node, session) != session:
                    common[node] = True
        return [int(common[nodes[a:b]].sum()) for a, b in zip(offsets, offsets[1:], strict=False)]


def _cached_blocks(request: ObservedRequest, block_size: int) -> int | None:
    """Of a prompt, of which a token at least is computed; None: not reported."""
    if request.cached_tokens is None:
        return None
    most = (request.prompt_tokens - 1) // block_size
    return max(0, min(most, round(request.cached_tokens / block_size)))


def _ids(request: ObservedRequest, block_size: int, place: int) -> NDArray[np.uint64]:
    """The ids of a prompt's blocks; where they are unknown, or none, it shares none."""
    blocks = -(-request.prompt_tokens // block_size)
    if len(request.block_ids) == blocks:
        with suppress(OverflowError):
            return np.array(request.block_ids, np.uint64)
    own = np.arange(blocks, dtype=np.uint64) + np.uint64((place + 1) << 32)
    mix_values(own)
    return own >> np.uint64(1)  # as ids of traces are
