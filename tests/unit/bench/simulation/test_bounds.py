"""The bounds against a cache written down plainly, one engine's block at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.bench.simulation.bounds import pooled_hit_rate
from dynamo_router.bench.traces.trace import TraceRequest

BLOCK = 8  # of a trace, in tokens; an engine's have 4


def requests_of(chains: list[tuple[list[int], int]]) -> list[TraceRequest]:
    """Prompts down a tree: an id is the path to it; the last block lacks some tokens."""
    names: dict[tuple[int, ...], int] = {}
    made = []
    for branches, missing in chains:
        path = [tuple(branches[: i + 1]) for i in range(len(branches))]
        ids = tuple(names.setdefault(each, len(names)) for each in path)
        made.append(TraceRequest(0, BLOCK * len(ids) - missing, 1, ids))
    return made


def plain_hit_rate(requests: list[TraceRequest], capacity: int | None) -> float:
    cache: list[tuple[int, int]] = []  # (id, tokens), oldest first
    hits = total = 0
    for request in requests:
        length, known = request.input_length, {name for name, _ in cache}
        depth = 0
        while depth < len(request.hash_ids) and request.hash_ids[depth] in known:
            depth += 1
        hits += min(depth * BLOCK // 4 * 4, (length - 1) // 4 * 4)
        total += length
        for place in reversed(range(len(request.hash_ids))):
            name = request.hash_ids[place]
            own = min(BLOCK, length - place * BLOCK)
            size = own if place >= depth else next(s for n, s in cache if n == name)
            cache = [entry for entry in cache if entry[0] != name] + [(name, size)]
        while capacity is not None and sum(size for _, size in cache) > capacity * 4:
            cache.pop(0)
    return hits / total


chains = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=5), st.integers(0, BLOCK - 1)),
    min_size=1,
    max_size=30,
)


@given(chains=chains, capacity=st.none() | st.integers(0, 40))
def test_it_is_the_hit_rate_of_one_lru_cache(
    chains: list[tuple[list[int], int]], capacity: int | None
) -> None:
    requests = requests_of(chains)
    rate = pooled_hit_rate(requests, block_size=4, capacity_blocks=capacity, trace_block_size=BLOCK)
    assert rate == pytest.approx(plain_hit_rate(requests, capacity))
    endless = pooled_hit_rate(requests, block_size=4, capacity_blocks=None, trace_block_size=BLOCK)
    assert rate <= endless + 1e-12
