"""Synthesized requests, of both models: valid, reproducible, alike, and scaled as asked."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.places import CONVERSATION
from support.traces import SIZE, SPECIAL, chat, request, traces

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.synthesizer.sample import KINDS, ModelKind, sample_traffic, synthesize
from dynamo_router.bench.synthesizer.scaling import Scaling
from dynamo_router.bench.synthesizer.trace_model import TraceModel, learn_model
from dynamo_router.bench.traces.analysis import TraceAnalysis, analyze
from dynamo_router.bench.traces.columns import TraceColumns, columns_of, read_columns
from dynamo_router.bench.traces.trace import TraceRequest, encode_request, read_trace

both = pytest.mark.parametrize("kind", KINDS)


def learn(requests: list[TraceRequest], window: int = 16) -> TraceModel:
    return learn_model(columns_of(requests, trace_block_size=SIZE), window)


def look(requests: list[TraceRequest], block_size: int = SIZE) -> TraceAnalysis:
    return analyze(columns_of(requests, trace_block_size=block_size))[0]


@pytest.fixture(scope="module")
def traffic() -> TraceColumns:
    """More of the shipped sample, so that chance and the trace's ends matter little."""
    return columns_of(sample_traffic(3000))


@pytest.fixture(scope="module")
def sample(traffic: TraceColumns) -> TraceModel:
    return learn_model(traffic, window=32)  # sessions of seconds need short ones


def prompts(columns: TraceColumns) -> list[tuple[int, ...]]:
    """The ids of each request."""
    return [tuple(ids) for ids in np.split(columns.ids, columns.offsets[1:-1])]


def make(model: TraceModel, kind: ModelKind, seed: int = 0, **scaling: float) -> list[TraceRequest]:
    return list(
        synthesize(
            model,
            model.requests,
            seed=seed,
            kind=kind,
            scaling=Scaling(**scaling),  # type: ignore[arg-type]  # whole numbers where it says so
        )
    )


def block_lengths(requests: list[TraceRequest], block_size: int = SIZE) -> dict[int, set[int]]:
    """Per id: how many tokens it stands for. Only a partial last block has fewer than the size."""
    found: dict[int, set[int]] = defaultdict(set)
    for made in requests:
        *inner, last = made.hash_ids
        for block in inner:
            found[block].add(block_size)
        found[last].add(made.input_length - len(inner) * block_size)
    return found


@both
@settings(max_examples=40, deadline=None)
@given(
    requests=traces(),
    seed=st.integers(0, 2**40),
    count=st.integers(1, 70),
    window=st.integers(0, 8),
    prefix=st.sampled_from([0.1, 0.5, 1.0, 1.5, 3.0]),
    prompt=st.sampled_from([0.01, 1.0, 2.5]),
    families=st.integers(1, 3),
    speedup=st.sampled_from([0.3, 1.0, 7.0]),
)
def test_whatever_is_learned_and_asked_a_valid_trace_comes_out(
    kind: ModelKind,
    tmp_path_factory: pytest.TempPathFactory,
    requests: list[TraceRequest],
    seed: int,
    count: int,
    window: int,
    prefix: float,
    prompt: float,
    families: int,
    speedup: float,
) -> None:
    scaling = Scaling(
        prefix_len_multiplier=prefix,
        prompt_len_multiplier=prompt,
        prefix_root_multiplier=families,
        speedup_ratio=speedup,
    )
    model = learn(requests, window)
    made = list(synthesize(model, count, seed=seed, kind=kind, scaling=scaling))
    path = tmp_path_factory.mktemp("made") / "trace.jsonl"
    path.write_bytes(b"".join(map(encode_request, made)))
    # The reader holds each request to its length and all of them to one tree.
    assert list(read_trace(path, trace_block_size=SIZE)) == made
    assert len(made) == count and made[0].timestamp_ms == 0
    again = list(synthesize(model, count, seed=seed, kind=kind, scaling=scaling))
    assert again == made
    if kind == "sessions":  # whatever was learned; the Markov walk repeats what it was shown
        assert all(len(lengths) == 1 for lengths in block_lengths(made).values())


@both
@pytest.mark.parametrize("factor", [0.2, 0.5, 1.0, 1.7])
def test_a_partial_block_is_its_prompts_own_or_a_repeats(
    traffic: TraceColumns, sample: TraceModel, kind: ModelKind, factor: float
) -> None:
    made = make(sample, kind, prefix_len_multiplier=factor)
    assert all(len(lengths) == 1 for lengths in block_lengths(made, 512).values())
    if factor == 1:
        drawn = [request.hash_ids for request in made]
        repeats = [len(ids) - len(set(ids)) for ids in (prompts(traffic), drawn)]
        assert repeats[0] > 10 and repeats[1] == pytest.approx(repeats[0], rel=0.25)


@both
def test_fewer_requests_are_the_beginning_of_more(sample: TraceModel, kind: ModelKind) -> None:
    short = list(synthesize(sample, 100, seed=5, kind=kind))
    assert short == list(synthesize(sample, 1000, seed=5, kind=kind))[:100]
    assert short != list(synthesize(sample, 100, seed=6, kind=kind))


@both
@pytest.mark.parametrize("name", SPECIAL)
def test_special_traces_stay_what_they_are(name: str, kind: ModelKind) -> None:
    learned = SPECIAL[name]
    for scale in (1, 3):
        made = list(synthesize(learn(learned), scale * len(learned), seed=1, kind=kind))
        found = look(made)
        lengths = sorted(request.input_length for request in made)
        if name in ("all identical", "no reuse", "all at once"):
            assert lengths == sorted(scale * [request.input_length for request in learned])
        if name == "all identical":
            assert found.hit_rate_infinite > 0.8
        if name == "no reuse":
            assert found.hit_rate_infinite == 0
        if name == "all at once":
            assert found.span_s == 0 and found.tree.stem_blocks == 1
        if name == "one long session":
            assert found.hit_rate_infinite > 0.8


def test_a_markov_trace_of_the_learned_size_visits_as_it_was_learned(
    traffic: TraceColumns, sample: TraceModel
) -> None:
    learned = analyze(traffic)[0]
    for seed in range(3):
        made = look(make(sample, "markov", seed), 512)
        assert made.hit_rate_infinite == pytest.approx(learned.hit_rate_infinite, rel=1e-3)
        assert made.input_length.mean == pytest.approx(learned.input_length.mean, rel=1e-3)
        assert made.context_length.mean == pytest.approx(learned.context_length.mean, rel=1e-3)
        assert made.output_length.mean == pytest.approx(learned.output_length.mean)
        assert made.output_length.std == pytest.approx(learned.output_length.std)
        # Which turn follows which is what a memoryless walk forgets.
        assert made.sessions.count == pytest.approx(learned.sessions.count, rel=0.1)


@both
def test_it_is_like_what_was_learned(
    traffic: TraceColumns, sample: TraceModel, kind: ModelKind
) -> None:
    """docs/synthesizer.md has the figures of a real trace."""
    learned, samples = analyze(traffic)
    for seed in range(4):
        made, drawn = analyze(columns_of(make(sample, kind, seed)))
        assert made.hit_rate_infinite == pytest.approx(learned.hit_rate_infinite, rel=0.03)
        assert made.input_length.mean == pytest.approx(learned.input_length.mean, rel=0.05)
        assert made.input_length.std == pytest.approx(learned.input_length.std, rel=0.15)
        assert made.output_length.mean == pytest.approx(learned.output_length.mean, rel=0.03)
        assert made.span_s == pytest.approx(learned.span_s, rel=0.02)
        for cache in (200_000, 400_000):
            rates = [curve.hit_rate(cache) for curve in (samples.curve, drawn.curve)]
            assert rates[1] == pytest.approx(rates[0], rel=0.1)


def test_more_requests_are_more_of_the_same(sample: TraceModel) -> None:
    for kind in KINDS:
        once, often = (
            look(list(synthesize(sample, count * sample.requests, kind=kind)), 512)
            for count in (1, 8)
        )
        assert often.hit_rate_infinite == pytest.approx(once.hit_rate_infinite, rel=0.08)
        assert often.input_length.mean == pytest.approx(once.input_length.mean, rel=0.05)
        assert often.arrivals.rate_per_s == pytest.approx(once.arrivals.rate_per_s, rel=0.03)


def test_a_session_extends_its_own_history() -> None:
    """What the Markov walk loses: every turn holds all full blocks of the turn before."""
    learned = look(chat())
    assert learned.sessions.whole_history_share == 1.0
    model = learn(chat(), window=128)
    shares = {kind: look(make(model, kind)).sessions.whole_history_share for kind in KINDS}
    assert shares["sessions"] == 1.0
    assert (shares["markov"] or 0) < 0.9


def test_long_sessions_stay_long() -> None:
    """Few go on and on beside many that end at once: the mean of both would be neither."""
    learned = chat(sessions=600, turns=2)
    for made in chat(sessions=20, turns=16):
        ids = [block if block < 2 else block + 10**6 for block in made.hash_ids]
        learned.append(request(made.timestamp_ms + 50_000, ids, partial=3))
    learned.sort(key=lambda made: made.timestamp_ms)
    model = learn(learned)
    for seed in range(4):
        made = columns_of(make(model, "sessions", seed), trace_block_size=SIZE)
        sizes = analyze(made)[1].session_size
        assert 10 <= (sizes >= 12).sum() <= 30
        assert (sizes == 2).sum() > 500


def test_agents_share_their_parents_prefix() -> None:
    """A parent calls three agents that take over its prompt, and carries on when they are done."""
    learned, fresh = [], 1
    for task in range(60):
        parent = [0, *range(fresh, fresh + 4)]
        fresh += 4
        steps = [(0, parent), *((2 + agent, [*parent, fresh + agent]) for agent in range(3))]
        steps.append((9, [*parent, *range(fresh + 3, fresh + 6)]))
        fresh += 6
        learned += [
            TraceRequest(task * 20 + at, SIZE * len(ids), 1, tuple(ids)) for at, ids in steps
        ]
    made = make(learn(sorted(learned, key=lambda call: call.timestamp_ms)), "sessions")
    assert look(made).hit_rate_infinite == pytest.approx(look(learned).hit_rate_infinite, rel=0.03)
    tasks = defaultdict(list)
    for call in made:
        tasks[call.hash_ids[1]].append(call)
    whole = [calls for calls in tasks.values() if len(calls) == 5]
    assert len(whole) > 50
    for calls in whole:
        # All of a task share the parent's five blocks, and the agents nothing more.
        assert {call.hash_ids[:5] for call in calls} == {calls[0].hash_ids}
        assert len({call.hash_ids[5] for call in calls[1:]}) == 4


@both
@pytest.mark.parametrize("factor", [0.5, 1.5, 2.0, 3.0])
def test_prefixes_are_stretched(sample: TraceModel, kind: ModelKind, factor: float) -> None:
    contexts = []
    for seed in range(4):
        plain = look(make(sample, kind, seed), 512)
        found = look(make(sample, kind, seed, prefix_len_multiplier=factor), 512)
        contexts.append((found.context_length.mean or 0) / (plain.context_length.mean or 1))
        # What is kept for turns that the trace's end cuts off is stretched, but shared by nobody.
        assert found.unique_prompt_length.mean == pytest.approx(
            plain.unique_prompt_length.mean, rel=0.06 * max(1, factor)
        )
    if factor == int(factor):
        assert contexts == pytest.approx([factor] * 4, rel=0.02)
    else:
        # The one block of the system prompt is rounded up or down for all of a trace.
        assert np.mean(contexts) == pytest.approx(factor, rel=0.03)


@both
def test_prompts_outputs_and_times_are_scaled(sample: TraceModel, kind: ModelKind) -> None:
    plain = make(sample, kind)
    scaled = make(sample, kind, prompt_len_multiplier=1.25, osl_multiplier=0.3, speedup_ratio=2.0)
    before, after = look(plain, 512), look(scaled, 512)
    assert after.unique_prompt_length.mean == pytest.approx(
        1.25 * (before.unique_prompt_length.mean or 0), rel=0.01
    )
    # All but the partial blocks of repeats, which are a prompt's own.
    assert after.context_length.mean == pytest.approx(before.context_length.mean, rel=1e-3)
    assert after.output_length.mean == pytest.approx(
        0.3 * (before.output_length.mean or 0), rel=0.02
    )
    assert after.span_s == pytest.approx(before.span_s / 2)
    # Not one instant is lost to rounding.
    assert after.arrivals.instants == before.arrivals.instants


@both
def test_a_shortened_prefix_keeps_its_partial_end_to_itself(kind: ModelKind) -> None:
    learned = [request(at, [1, 2] if at % 2 else [1, 10 + at], partial=3) for at in range(40)]
    for seed in range(10):
        made = make(learn(learned), kind, seed, prefix_len_multiplier=0.5)
        assert all(len(lengths) == 1 for lengths in block_lengths(made).values())


def test_pauses_are_stretched_and_requests_come_as_before() -> None:
    learned = chat(sessions=300)
    model = learn(learned)
    gaps = {}
    for pause in (0.5, 1.0, 3.0):
        made = make(model, "sessions", pause_multiplier=pause)
        found = look(made)
        gaps[pause] = found.sessions.gap_s.median
        assert [request.timestamp_ms for request in made] == [
            request.timestamp_ms for request in make(model, "sessions")
        ]
    assert gaps == {pause: pytest.approx(3.0 * pause, rel=0.1) for pause in gaps}


@both
def test_fast_arrivals_stay_apart(kind: ModelKind) -> None:
    learned = [TraceRequest(at, 8, 1, (at,)) for at in range(200)]
    made = make(learn(learned), kind, speedup_ratio=50.0)
    times = [request.timestamp_ms for request in made]
    assert len(set(times)) == 200 and times[-1] == pytest.approx(199 / 50, rel=0.02)


@both
def test_four_families_of_one_system_prompt(kind: ModelKind) -> None:
    learned = chat(sessions=400)
    made = make(learn(learned, 128), kind, seed=2, prefix_root_multiplier=4)
    families = defaultdict(list)
    for each in made:
        families[each.hash_ids[0]].append(each)
    assert len(families) == 4
    ids = [
        {block for request in family for block in request.hash_ids} for family in families.values()
    ]
    assert sum(map(len, ids)) == len(set.union(*ids))
    whole = look(learned)
    for family in families.values():
        found = look(family)
        assert found.requests == pytest.approx(len(learned) / 4, rel=0.1)
        assert found.input_length.mean == pytest.approx(whole.input_length.mean, rel=0.05)
        assert found.hit_rate_infinite == pytest.approx(whole.hit_rate_infinite, rel=0.05)


@both
def test_limits_are_kept(sample: TraceModel, kind: ModelKind) -> None:
    made = make(sample, kind, min_isl=1500, max_isl=6000, min_osl=20, max_osl=40)
    assert all(1500 <= request.input_length <= 6000 for request in made)
    assert all(20 <= request.output_length <= 40 for request in made)
    assert len({request.output_length for request in made}) > 5


@both
def test_limits_that_nothing_meets_are_an_error(sample: TraceModel, kind: ModelKind) -> None:
    with pytest.raises(ConfigError, match="max_isl: no prompt of 20000 drawn"):
        make(sample, kind, max_isl=3)
    with pytest.raises(ConfigError, match="min_isl: no prompt of 20000 drawn"):
        make(sample, kind, min_isl=10**7)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"prefix_len_multiplier": 0.0}, "prefix_len_multiplier: 0.0 must be finite and greater"),
        ({"prompt_len_multiplier": -1.0}, "prompt_len_multiplier: -1.0 must be"),
        ({"osl_multiplier": float("nan")}, "osl_multiplier: nan must be"),
        ({"speedup_ratio": float("inf")}, "speedup_ratio: inf must be"),
        ({"prefix_root_multiplier": 0}, "prefix_root_multiplier: 0 must be from 1"),
        ({"prefix_root_multiplier": -4}, "prefix_root_multiplier: -4 must be from 1"),
        ({"min_isl": 0}, "min_isl: 0 must be at least 1"),
        ({"max_osl": -1}, "max_osl: -1 must be at least 0"),
        ({"min_isl": 9, "max_isl": 8}, "min_isl: 9 must not be above max_isl, 8"),
    ],
)
def test_bad_scaling_is_named(bad: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scaling(**bad)  # type: ignore[arg-type]  # that is the point


@given(st.integers(0, 5000), st.floats(0.01, 20), st.lists(st.floats(0, 0.999), min_size=200))
@settings(max_examples=40)
def test_fractions_are_right_on_average(learned: int, factor: float, dithers: list[float]) -> None:
    scaling = Scaling(osl_multiplier=factor)
    made = [scaling.output_length(learned, dither) for dither in dithers]
    assert set(made) <= {int(learned * factor), int(learned * factor) + 1}
    even = [scaling.output_length(learned, at / 1000) for at in range(1000)]
    assert np.mean(even) == pytest.approx(learned * factor, abs=0.002)


@pytest.mark.skipif(not CONVERSATION.exists(), reason="the conversation trace is not here")
@pytest.mark.parametrize(("kind", "rel"), [("sessions", 0.03), ("markov", 0.05)])
def test_the_conversation_trace_is_met(kind: ModelKind, rel: float) -> None:
    columns = read_columns(CONVERSATION)
    learned, samples = analyze(columns)
    model = learn_model(columns)
    for seed in range(4):
        made, drawn = analyze(columns_of(synthesize(model, model.requests, seed=seed, kind=kind)))
        assert made.hit_rate_infinite == pytest.approx(learned.hit_rate_infinite, rel=rel)
        assert made.input_length.mean == pytest.approx(learned.input_length.mean, rel=rel)
        assert made.input_length.std == pytest.approx(learned.input_length.std, rel=rel)
        assert made.output_length.mean == pytest.approx(learned.output_length.mean, rel=rel)
        assert drawn.curve.hit_rate(4_000_000) == pytest.approx(
            samples.curve.hit_rate(4_000_000), rel=rel
        )
