"""The decision between local and remote prefill, held against an oracle that has the rules as the
peers' documents have them; and what is learnt of hand-offs."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import ConfigError
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.disagg import (
    DISAGG_MODES,
    DISAGG_POLICIES,
    REASONS,
    DisaggConfig,
    LinkEstimate,
    LocalForecast,
    PairFacts,
    PairRule,
    RemoteForecast,
    judge,
)
from dynamo_router.router.disagg.rule import HARM, MOST_SHARES

seconds = st.floats(0, 100)
locals_ = st.builds(LocalForecast, *[seconds] * 5, st.floats(0, 0.1))
remotes = st.builds(RemoteForecast, seconds, seconds, seconds, seconds, seconds)


@st.composite
def facts(draw: st.DrawFn) -> PairFacts:
    isl = draw(st.integers(1, 50_000))
    known = draw(st.booleans())
    return PairFacts(
        isl,
        draw(st.integers(0, isl)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(locals_) if known else None,
        draw(remotes) if known else None,
    )


configs = st.builds(
    DisaggConfig,
    disagg=st.sampled_from(DISAGG_MODES),
    disagg_policy=st.sampled_from(DISAGG_POLICIES),
    disagg_eff_isl_threshold=st.integers(0, 10_000),
    disagg_eff_isl_ratio_threshold=st.floats(0, 1),
    disagg_noncached_tokens=st.integers(0, 10_000),
)


def oracle(config: DisaggConfig, seen: PairFacts) -> bool:
    """Whether the prefill is remote."""
    if config.disagg == "off":
        return False
    if config.disagg == "always":
        return True
    left = seen.isl - seen.cached_tokens
    short = left < config.disagg_eff_isl_threshold and (
        left < config.disagg_eff_isl_ratio_threshold * seen.isl
    )
    if config.disagg_policy == "forecast" and seen.local and seen.remote:
        local = sum(seen.local[:4]) + seen.local.price * seen.local.stalled_s
        local += 10 * (seen.local.wait_s + seen.local.memory_s) ** 2
        remote = sum(seen.remote) + 10 * (seen.remote.wait_s + seen.remote.memory_s) ** 2
        edge = remote + max(0.05 * local, seen.local.step_s)
        return edge < local and not math.isclose(edge, local, rel_tol=1e-9)
    if config.disagg_policy == "noncached":
        return config.disagg_noncached_tokens > 0 and left >= config.disagg_noncached_tokens
    bypass = {
        "forecast": short,
        "isl_bounding": short,
        "prefill_load": seen.prefill_busy,
        "isl_or_load": short or seen.prefill_busy,
    }[config.disagg_policy]
    return seen.decode_busy or not bypass


@given(configs, facts())
def test_every_policy_decides_as_its_oracle(config: DisaggConfig, seen: PairFacts) -> None:
    verdict = judge(config, seen)
    assert verdict.reason in REASONS["remote" if verdict.remote else "local"]
    edge = 0.0
    if verdict.local_s is not None and verdict.remote_s is not None and seen.local is not None:
        edge = verdict.remote_s + max(0.05 * verdict.local_s, seen.local.step_s) - verdict.local_s
        if abs(edge) <= 1e-6 * (1 + verdict.local_s):
            return  # sums in another order
    assert verdict.remote == oracle(config, seen)
    assert verdict.reason


@given(facts().filter(lambda seen: seen.local is not None), st.floats(0, 10))
def test_a_slower_remote_way_never_makes_a_local_prompt_remote(
    seen: PairFacts, more: float
) -> None:
    assert seen.remote is not None
    slower = seen._replace(remote=seen.remote._replace(wait_s=seen.remote.wait_s + more))
    assert judge(DisaggConfig(), slower).remote <= judge(DisaggConfig(), seen).remote


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("disagg", "sometimes"),
        ("disagg_policy", "best"),
        ("disagg_eff_isl_threshold", -1),
        ("disagg_eff_isl_ratio_threshold", 1.5),
        ("disagg_eff_isl_ratio_threshold", math.nan),
        ("disagg_prefill_busy_threshold", -0.1),
        ("disagg_prefill_busy_threshold", math.inf),
        ("disagg_decode_busy_threshold", 1.1),
        ("disagg_noncached_tokens", -1),
    ],
)
def test_a_setting_out_of_range_is_named(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        DisaggConfig(**{key: value})  # type: ignore[arg-type]  # a bad one
    assert caught.value.key == key


@given(st.floats(1e-3, 0.1), st.floats(1e9, 1e11), st.integers(0, 1000))
def test_latency_and_bandwidth_are_learnt_from_exact_observations(
    latency: float, bandwidth: float, seed: int
) -> None:
    links, draw = LinkEstimate(), Random(seed)
    for _ in range(600):
        size = draw.uniform(1e7, 5e9)
        links.observe(0, 1, size, latency + size / bandwidth)
    for size in (1e8, 2e9, 5e9):
        truth = latency + size / bandwidth
        assert links.seconds(0, 1, size) == pytest.approx(truth, rel=0.1, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e4)), max_size=50), st.floats(0, 1e12))
def test_no_observation_makes_a_hand_off_take_no_possible_time(
    observed: list[tuple[float, float]], size: float
) -> None:
    links = LinkEstimate()
    for each, took in observed:
        links.observe(0, 1, each, took)
    links.observe(0, 1, math.nan, 1.0)
    links.observe(0, 1, 1.0, math.inf)
    small, large = links.seconds(0, 1, size), links.seconds(0, 1, 2 * size)
    assert 0 <= small <= large < math.inf
    assert links.observed == len(observed)


def test_a_slow_pair_is_known_as_such_until_a_worker_of_it_leaves() -> None:
    links = LinkEstimate()
    for _ in range(40):
        links.observe(0, 1, 1e9, 0.1)
        links.observe(0, 2, 1e9, 0.4)
    slow = links.seconds(0, 2, 1e9)
    assert slow > 2 * links.seconds(0, 1, 1e9)
    links.forget(2)
    assert links.seconds(0, 2, 1e9) < slow


def test_a_hand_off_that_waited_for_a_prompt_teaches_nothing() -> None:
    rule, source, target = PairRule(DisaggConfig()), 1, WorkerWithDpRank(2)
    rule.on_local(target, 0.2, 10.0)  # until 10.2
    there = rule.landing(source, target, 8000)
    rule.on_handed_over(there, 0.3, 10.4)
    assert not rule.links.observed
    rule.on_handed_over(rule.landing(source, WorkerWithDpRank(3), 8000), 0.3, 10.4)
    rule.on_handed_over(there, 0.1, 10.4)
    assert rule.links.observed == 2


def test_a_hand_off_waits_for_prompts_that_its_target_computes() -> None:
    rule, target = PairRule(DisaggConfig()), WorkerWithDpRank(2)
    landing = rule.landing(1, target, 8000)
    alone_s = rule.handoff_s(landing, 10.0)
    rule.on_local(target, 0.3, 10.0)
    assert rule.handoff_s(landing, 10.1) == pytest.approx(alone_s + 0.2)
    assert rule.handoff_s(landing, 10.5) == alone_s, "they are over by then"
    assert rule.handoff_s(rule.landing(1, WorkerWithDpRank(3), 8000), 10.1) == alone_s


def test_hand_offs_that_share_a_card_take_longer_until_they_have_landed() -> None:
    rule = PairRule(DisaggConfig(), kv_bytes_per_token=100_000)
    workers = [WorkerWithDpRank(n) for n in range(4)]
    alone_s = rule.handoff_s(rule.landing(9, workers[0], 10_000), 0.0)
    there = WorkerWithDpRank(9), WorkerWithDpRank(8)
    sent = [
        rule.on_remote(there[0], workers[1], 10_000, 300.0),
        rule.on_remote(there[1], workers[0], 5_000, 300.0),
    ]
    from_there, to_there, apart = (
        rule.handoff_s(rule.landing(source, target, 10_000), 0.0)
        for source, target in ((9, workers[2]), (7, workers[0]), (7, workers[2]))
    )
    assert alone_s == apart < to_there < from_there
    for each in sent:
        rule.on_landed(each)
    assert rule.handoff_s(rule.landing(9, workers[0], 10_000), 0.0) == alone_s
    assert not rule._sent and not rule._landing, "nothing is kept of what has landed"


def test_the_token_of_the_prefill_worker_comes_before_the_hand_off() -> None:
    """Which then holds up an answer, as prompts do that are computed beside it."""
    local = LocalForecast(0.0, 0.1, 0.0, 0.0, 0.2)
    remote = RemoteForecast(0.0, 0.05, 0.0, 0.08, 0.02)
    ahead = remote._replace(is_ahead=True)
    assert remote.first_token_s == pytest.approx(0.15) and ahead.first_token_s == 0.05
    for way, expected in ((remote, False), (ahead, True)):
        verdict = judge(DisaggConfig(), PairFacts(1000, 0, local=local, remote=way))
        assert verdict.remote is expected
    rule = PairRule(DisaggConfig())
    assert rule.for_first_ahead().is_ahead and not rule.is_ahead


def test_a_long_wait_counts_more_than_its_seconds() -> None:
    """And other prompts' as much as its own: of two ways the one without a queue is taken."""
    queued = LocalForecast(0.2, 0.05, 0.0, 0.0, 0.0)
    stalling = LocalForecast(0.0, 0.05, 0.0, 0.2, 0.0)
    remote = RemoteForecast(0.0, 0.05, 0.0, 0.18, 0.0)
    far = remote._replace(handoff_s=0.4)
    for local, way, expected in ((queued, remote, True), (queued, far, True),
                                 (stalling, remote, True), (stalling, far, False)):  # fmt: skip
        seen = PairFacts(1000, 0, local=local, remote=way)
        assert judge(DisaggConfig(), seen).remote is expected


def test_harm_costs_more_where_prompts_leave_answers_no_time() -> None:
    rule = PairRule(DisaggConfig(disagg_itl_ms=20.0))
    idle = rule.price("w", 0.008, 0.0)
    assert HARM < idle < 1.1 * HARM
    for step in range(400):  # four fifths of its time
        rule.on_local("w", 0.08, step * 0.1)
    busy = rule.price("w", 0.008, 40.0)
    assert busy > 3 * HARM
    assert rule.price("other", 0.008, 40.0) == idle
    assert rule.price("w", 0.008, 200.0) == pytest.approx(idle, rel=1e-3), "it is forgotten"
    assert rule.price("other", 0.1, 40.0) > busy, "its steps alone take too long"


def test_what_is_remembered_of_workers_is_bounded() -> None:
    rule = PairRule(DisaggConfig())
    for worker in range(MOST_SHARES + 10):
        rule.on_local(worker, 1.0, float(worker))
    assert len(rule._prompts_s) == MOST_SHARES and 0 not in rule._prompts_s


@pytest.mark.parametrize("step_s", [1e60, math.inf])
def test_a_step_without_end_has_a_price(step_s: float) -> None:
    """What is learnt of engines can be anything, and a decision is never an error."""
    rule = PairRule(DisaggConfig())
    assert 1e3 < rule.price(1, step_s, 0.0) < math.inf
