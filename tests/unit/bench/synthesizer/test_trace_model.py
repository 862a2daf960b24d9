"""The learned model: its chains and CDFs, and its file."""

from collections import Counter, defaultdict
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.traces import SIZE, SPECIAL, chat, request, traces

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.synthesizer.markov import (
    END,
    LEAF,
    START,
    MarkovModel,
    depth_class,
    learn_markov,
)
from dynamo_router.bench.synthesizer.sample import KINDS, SAMPLE_TRACE, synthesize
from dynamo_router.bench.synthesizer.sessions import BEYOND, FRACTION, LEVEL, WHOLE, learn_sessions
from dynamo_router.bench.synthesizer.trace_model import (
    MAGIC,
    ModelError,
    describe_model,
    is_model,
    learn_model,
    load_model,
    save_model,
    seal,
    unseal,
)
from dynamo_router.bench.traces.columns import columns_of, read_columns
from dynamo_router.bench.traces.prefix_tree import build_tree
from dynamo_router.bench.traces.trace import TraceRequest


def markov_of(requests: list[TraceRequest], window: int = 0) -> MarkovModel:
    return learn_markov(build_tree(columns_of(requests, trace_block_size=SIZE)), window)


def paths(model: MarkovModel) -> list[int]:
    """Per chain: blocks from the start to its end."""
    found: list[int] = []
    for parent, length in zip(model.chain_parents, model.chain_lengths, strict=True):
        found.append(int(length) + (found[parent] if parent != START else 0))
    return found


def test_chains_join_what_the_same_requests_visit() -> None:
    model = markov_of(
        [
            request(0, [1, 2, 3, 4], partial=2),
            request(1, [1, 2, 3, 4, 5], partial=1),
            request(2, [1, 2, 9, 8, 7], partial=5),
            request(3, [1, 2, 3, 4], partial=2),
        ]
    )
    assert model.chain_parents.tolist() == [START, 0]
    assert model.chain_lengths.tolist() == [2, 2]
    assert model.chain_residuals.tolist() == [0, SIZE - 2]
    targets, cdf = model.transition_cdf(START)
    assert targets.tolist() == [0] and cdf.tolist() == [1.0]
    targets, cdf = model.transition_cdf(0)
    assert targets.tolist() == [LEAF, 1] and cdf.tolist() == [0.25, 1.0]
    targets, cdf = model.transition_cdf(1)
    assert targets.tolist() == [END, LEAF] and cdf.tolist() == pytest.approx([2 / 3, 1.0])
    assert model.transition_cdf(7)[0].size == 0
    leaves = {at: leaf.samples() for at, leaf in enumerate(model.leaves) if len(leaf)}
    assert leaves == {depth_class(2): [3], depth_class(4): [1]}
    assert model.residuals.samples() == [SIZE - 5, SIZE - 1]


@settings(max_examples=80, deadline=None)
@given(traces(), st.integers(0, 7))
def test_walks_flow_and_nothing_is_lost(requests: list[TraceRequest], window: int) -> None:
    model = markov_of(requests, window)
    windows = len(model.window_offsets) - 1
    assert windows == (-(-len(requests) // min(window, len(requests))) if window else 1)
    for at in range(windows):
        rows = slice(*model.window_offsets[at : at + 2].tolist())
        into, out = Counter[int](), Counter[int]()
        for source, target, count in zip(
            model.sources[rows].tolist(), model.targets[rows].tolist(),
            model.counts[rows].tolist(), strict=True,
        ):  # fmt: skip
            out[source] += count
            into[target] += count
            assert target < 0 or model.chain_parents[target] == source
        # All that come to a chain leave it, and all that start end.
        assert all(out[chain] == into[chain] for chain in range(len(model.chain_lengths)))
        assert out[START] == into[LEAF] + into[END]
    for source in range(START, len(model.chain_lengths)):
        targets, cdf = model.transition_cdf(source)
        assert (np.diff(cdf) > 0).all() and (not len(cdf) or cdf[-1] == pytest.approx(1.0))
        assert len(set(targets.tolist())) == len(targets)
    # Chains and leaves hold every block: visits times lengths, and the leaves' own.
    visits = {chain: 0 for chain in range(len(model.chain_lengths))}
    for target, count in zip(model.targets.tolist(), model.counts.tolist(), strict=True):
        if target >= 0:
            visits[target] += count
    total = sum(count * int(model.chain_lengths[chain]) for chain, count in visits.items())
    total += sum(sum(leaf.samples()) for leaf in model.leaves)
    assert total == sum(len(made.hash_ids) for made in requests)
    assert all(count >= 2 for count in visits.values())
    assert max(paths(model), default=0) <= max(len(made.hash_ids) for made in requests)


def test_depth_classes_halve_each_doubling() -> None:
    classes = [depth_class(depth) for depth in range(2000)]
    assert classes == sorted(classes) and classes[0] == 0
    assert classes == [int(2 * np.log2(depth + 1) + 1e-9) for depth in range(2000)]


def test_turns_are_told_by_what_they_take_over() -> None:
    model = learn_sessions(
        build_tree(
            columns_of(
                [
                    request(0, [1, 2, 3, 4, 5, 6]),
                    request(10, [1, 2, 3, 4, 5, 6, 7, 8]),  # all of it
                    request(30, [1, 2, 3, 4, 5, 6, 9]),  # as much as the one before
                    request(60, [1, 2, 3, 4, 20]),  # two thirds of what that took over
                    request(100, [1, 2, 3, 4, 20, 21]),
                    request(150, [1, 2, 3, 4, 30]),  # as much as the one before the one before
                ],
                trace_block_size=SIZE,
            )
        )
    )
    opening, second, later, latest, _ = model.turns
    assert opening.takes.tolist() == [START] and opening.new_tokens.tolist() == [48]
    assert second.takes.tolist() == [6] and later.takes.tolist() == [6, 4]
    assert later.numbers.tolist() == [2, 3] and latest.numbers.tolist() == [4, 5]
    assert later.new_tokens.tolist() == [8, 8]
    assert latest.takes.tolist() == [5, 4] and latest.new_tokens.tolist() == [8, 8]
    assert not len(model.repeats)
    classes = (opening, second, later, latest)
    kinds = [kind for each in classes for kind in each.share_kinds]
    values = [value for each in classes for value in each.share_values]
    assert kinds == [BEYOND, BEYOND, FRACTION, BEYOND, LEVEL]
    assert values == pytest.approx([6, 0, 4 / 6, 1, 1])
    assert [gap for each in classes for gap in each.gaps_ms] == [10, 20, 30, 40, 50]
    assert latest.child_offsets.tolist() == [0, 1, 1]


def test_repeats_are_apart_and_partial_blocks_are_nobody_elses() -> None:
    model = learn_sessions(
        build_tree(
            columns_of(
                [
                    request(0, [1, 2, 3], partial=5),
                    request(10, [1, 2, 3], partial=5),  # the same again
                    request(20, [1, 2, 3], partial=4),  # not quite: its last block counts as new
                    request(30, [1, 2, 3, 4]),  # nor is a partial block what one goes on from
                ],
                trace_block_size=SIZE,
            )
        )
    )
    opening, second, later, *_ = model.turns
    assert opening.share_kinds.tolist() == [WHOLE] and opening.new_tokens.tolist() == [19]
    assert not len(second) and len(model.repeats) == 1
    assert model.repeats.takes.tolist() == [2] and model.repeats.new_tokens.tolist() == [3]
    assert later.takes.tolist() == [2, 2] and later.new_tokens.tolist() == [4, 16]


@pytest.mark.parametrize("name", [*SPECIAL, "chat"])
def test_a_model_survives_its_file(tmp_path: Path, name: str) -> None:
    learned = chat() if name == "chat" else SPECIAL[name]
    model = learn_model(columns_of(learned, trace_block_size=SIZE), window=16)
    path = tmp_path / "a.model"
    save_model(model, path)
    assert is_model(path)
    loaded = load_model(path)
    assert describe_model(loaded) == describe_model(model)
    for kind in KINDS:
        first, second = (list(synthesize(each, 100, kind=kind)) for each in (model, loaded))
        assert first == second


def test_a_model_has_no_id_of_the_trace(tmp_path: Path) -> None:
    """Another trace of the same shape, with other ids and times of day, is the same model."""
    contents = []
    for add, later in ((0, 0), (2**60, 86_400_000)):
        moved = [
            TraceRequest(
                made.timestamp_ms + later,
                made.input_length,
                made.output_length,
                tuple(block + add for block in made.hash_ids),
            )
            for made in chat()
        ]
        path = tmp_path / f"{add}.model"
        save_model(learn_model(columns_of(moved, trace_block_size=SIZE)), path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


def test_what_a_model_holds_is_told() -> None:
    facts = describe_model(learn_model(read_columns(SAMPLE_TRACE)))
    assert facts["block_size"] == 512 and facts["requests"] > 200
    told = facts["sessions"]
    assert sum(told["turns_by_class"]) + told["repeats"] == facts["requests"]
    assert facts["markov"]["transitions"] > 0
    msgspec.json.encode(facts)


def test_files_that_are_no_model(tmp_path: Path) -> None:
    path = tmp_path / "a.model"
    with pytest.raises(ModelError, match="cannot be read"):
        load_model(path)
    assert not is_model(path) and not is_model(SAMPLE_TRACE)
    with pytest.raises(ModelError, match="is no model of this version"):
        load_model(SAMPLE_TRACE)
    with pytest.raises(ConfigError, match="cannot write"):
        save_model(learn_model(columns_of(chat(), trace_block_size=SIZE)), tmp_path / "no" / "m")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_model_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("models") / "a.model"
    save_model(learn_model(columns_of(chat(sessions=3), trace_block_size=SIZE)), path)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(len(MAGIC), len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:at]
    else:
        content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with pytest.raises(ModelError, match="is damaged"):
        load_model(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests", "many"),
        ("requests", 5),
        ("block_size", 0),
        ("markov", {}),
        ("markov", None),
        ("sessions", {"requests": 1}),
        ("arrivals", {"gaps_ms": ["<f8", b""], "counts": ["<i8", b""]}),
        ("arrivals", {"gaps_ms": ["<f4", b"1234"], "counts": ["<i8", b"12345678"]}),
    ],
)
def test_a_model_with_parts_that_do_not_fit_is_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    path = tmp_path / "a.model"
    save_model(learn_model(columns_of(chat(), trace_block_size=SIZE)), path)
    tree = msgspec.msgpack.decode(unseal(path.read_bytes()))
    tree[field] = value
    path.write_bytes(seal(msgspec.msgpack.encode(tree)))
    with pytest.raises(ModelError, match="is damaged"):
        load_model(path)


def test_a_model_whose_turns_have_nothing_to_go_on_with_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.model"
    for learned, cut in (
        (SPECIAL["all identical"], lambda told: told | {"repeats": told["turns"][-1]}),
        (chat(), lambda told: told | {"turns": [told["turns"][0], *[told["repeats"]] * 4]}),
        (chat(), lambda told: told | {"turns": told["turns"][:3]}),
    ):
        save_model(learn_model(columns_of(learned, trace_block_size=SIZE)), path)
        tree = msgspec.msgpack.decode(unseal(path.read_bytes()))
        tree["sessions"] = cut(tree["sessions"])
        path.write_bytes(seal(msgspec.msgpack.encode(tree)))
        with pytest.raises(ModelError, match="its parts contradict each other"):
            load_model(path)


def test_windows_keep_prefixes_together_in_time() -> None:
    """A thousand short-lived prefixes in a row: short windows use each for a while only."""
    learned = [request(at, [at // 10, 10**6 + at]) for at in range(1000)]
    lives = {}
    for window in (0, 20):
        model = learn_model(columns_of(learned, trace_block_size=SIZE), window)
        seen = defaultdict(list)
        for at, made in enumerate(synthesize(model, 1000, kind="markov")):
            seen[made.hash_ids[0]].append(at)
        assert sorted(map(len, seen.values())) == [10] * 100
        lives[window] = np.mean([max(uses) - min(uses) for uses in seen.values()])
    assert lives[20] < 20 and lives[0] > 500
