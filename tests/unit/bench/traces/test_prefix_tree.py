"""The prefix tree of a trace and its cache curve, held against slow, obvious twins."""

from collections import Counter, OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.traces import SIZE, SPECIAL, chat, request, traces

from dynamo_router.bench.traces.cache_curve import build_curve, default_sizes
from dynamo_router.bench.traces.columns import columns_of
from dynamo_router.bench.traces.prefix_tree import PrefixTree, build_tree
from dynamo_router.bench.traces.trace import TraceRequest
from dynamo_router.bench.traces.trace_lines import TraceError
from dynamo_router.bench.traces.turns import find_turns


def tree_of(requests: list[TraceRequest]) -> PrefixTree:
    return build_tree(columns_of(requests, trace_block_size=SIZE))


@settings(max_examples=80, deadline=None)
@given(traces())
def test_the_tree_is_the_trace(requests: list[TraceRequest]) -> None:
    tree = tree_of(requests)
    flat = [block for made in requests for block in made.hash_ids]
    id_of = dict(zip(tree.nodes.tolist(), flat, strict=True))
    assert len(set(id_of.values())) == len(id_of) == len(tree)
    assert {id_of[node]: n for node, n in enumerate(tree.visits.tolist())} == Counter(flat)
    seen: dict[int, int] = {}
    for number, made in enumerate(requests):
        known = [block in seen for block in made.hash_ids]
        depth = known.index(False) if False in known else len(known)
        assert tree.known[number] == depth
        assert tree.latest[number] == (seen[made.hash_ids[depth - 1]] if depth else -1)
        seen |= dict.fromkeys(made.hash_ids, number)
    children: dict[int, set[int]] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        assert parent < node
        assert tree.depths[node] == (1 if parent < 0 else tree.depths[parent] + 1)
        children.setdefault(parent, set()).add(node)
        # What every request below a node visits, its parent's requests visit too.
        assert parent < 0 or tree.visits[parent] >= tree.visits[node]
    assert all(n == len(children.get(node, ())) for node, n in enumerate(tree.branches.tolist()))
    stems = tree.stems
    assert all(
        stems[tree.parents[node]] for node in np.flatnonzero(stems) if tree.parents[node] >= 0
    )


def lru_hit_tokens(requests: list[TraceRequest], blocks: int) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    hit = 0
    for made in requests:
        depth = 0
        while depth < len(made.hash_ids) and made.hash_ids[depth] in cache:
            depth += 1
        hit += min(depth * SIZE, made.input_length)
        for block in reversed(made.hash_ids):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > blocks:
            cache.popitem(last=False)
    return hit


@settings(max_examples=80, deadline=None)
@given(traces(), st.integers(0, 60))
def test_the_curve_is_what_an_lru_cache_of_each_size_would_hit(
    requests: list[TraceRequest], blocks: int
) -> None:
    curve = build_curve(tree_of(requests))
    total = sum(made.input_length for made in requests)
    for size in (blocks, blocks * SIZE // SIZE + 7, 10**6):
        assert curve.hit_rate(size * SIZE) == pytest.approx(lru_hit_tokens(requests, size) / total)
    assert curve.hit_rate_infinite == curve.hit_rate(10**9)
    rates = [rate for _, rate in curve.curve(range(0, 700, SIZE))]
    assert rates == sorted(rates) and rates[0] == 0


def test_cache_sizes_end_where_everything_is_held() -> None:
    assert default_sizes(0) == [125_000]
    assert default_sizes(300_000) == [125_000, 250_000, 500_000]


@pytest.mark.parametrize(
    ("requests", "line", "reason"),
    [
        ([[1, 2], [2, 1]], 2, "hash id 2 has two parents: id 1 and the start"),
        ([[1, 2], [4], [3, 2]], 3, "hash id 2 has two parents: id 1 and id 3"),
        ([[3, 3]], 1, "hash id 3 has two parents: the start and id 3"),
        ([[1, 2, 3], [1, 9, 3]], 2, "hash id 3 has two parents: id 2 and id 9"),
    ],
)
def test_two_parents_are_named(requests: list[list[int]], line: int, reason: str) -> None:
    with pytest.raises(TraceError, match=reason) as caught:
        tree_of([request(0, ids) for ids in requests])
    assert caught.value.line == line


def test_ids_of_any_size_and_many_of_them() -> None:
    """Past several growths of the table, with ids that share their low or their high bits."""
    ids = [*range(3000), *(at << 40 for at in range(1, 3000)), 2**63 - 1]
    tree = tree_of([request(0, ids), request(1, ids)])
    assert tree.nodes.tolist() == [*range(len(ids))] * 2
    assert tree.known.tolist() == [0, len(ids)]
    assert (tree.visits == 2).all()


def test_a_system_prompt_is_a_stem_and_a_session_is_none() -> None:
    tree = tree_of(chat())
    assert tree.stems.sum() == 2
    turns = find_turns(tree)
    assert len(turns.session_sizes) == 40 and set(turns.session_sizes.tolist()) == {4}
    assert Counter(turns.numbers.tolist()) == {turn: 40 for turn in range(4)}
    assert tree_of(SPECIAL["one long session"]).stems.sum() == 0


def test_turns_follow_the_last_request_with_their_deepest_block() -> None:
    requests = [
        request(0, [1, 2]),
        request(1, [1, 2, 3]),
        request(2, [9]),
        request(3, [1, 2, 3, 4]),
        request(4, [1, 2, 5]),
        request(5, [9]),
    ]
    tree = tree_of(requests)
    assert not tree.stems.any()
    turns = find_turns(tree)
    assert turns.parents.tolist() == [-1, 0, -1, 1, 3, 2]
    assert turns.shared.tolist() == [0, 2, 0, 3, 2, 1]
    assert turns.numbers.tolist() == [0, 1, 0, 2, 3, 1]
    assert turns.sessions.tolist() == [0, 0, 2, 0, 0, 2]
    assert turns.session_spans(np.arange(6.0)).tolist() == [4.0, 3.0]
    assert turns.history_shares(np.array([2, 3, 1, 4, 3, 1])).tolist() == [1.0, 1.0, 0.5, 1.0]
