"""Policies of mode kv: found by name, made for a router, guarded where somebody else wrote them."""

import logging
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import ConfigError, NoWorkersError
from dynamo_router.bench.simulation.policies import parse_policies
from dynamo_router.router import policies
from dynamo_router.router.policies import known_policies, new_policy
from dynamo_router.router.policy import Candidates, Floats, GuardedPolicy, Policy, Rng
from dynamo_router.workers.registry import WorkerEntry

PROMPT = list(range(64))


class Last(Policy):
    """The eligible worker with the highest number."""

    def score(self, candidates: Candidates) -> Floats:
        costs = np.where(candidates.eligible, 1.0, np.inf)
        costs[np.flatnonzero(candidates.eligible)[-1]] = 0.0
        return costs


def favour_the_last(config: KvRouterConfig) -> Policy:
    return Last()


def make_nothing(config: KvRouterConfig) -> Any:
    return "no policy"


def fail_to_make(config: KvRouterConfig) -> Policy:
    raise OSError("no model file")


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if packages that offer these were installed."""
    points = [
        EntryPoint(name, f"{__name__}:{function}", policies.GROUP)
        for name, function in [
            ("last", "favour_the_last"),
            ("nothing", "make_nothing"),
            ("failing", "fail_to_make"),
            ("lost", "not_there"),
        ]
    ]
    monkeypatch.setattr(policies, "offered", lambda: points)


def router_with(given: Policy | None = None, **config: Any) -> KvRouter:
    made = KvRouter(
        KvRouterConfig(block_size=16, **config), clock=ManualClock(), seed=1, strategy=given
    )
    for worker_id in range(3):
        made.add_worker(worker_id)
    return made


def test_a_policy_of_a_package_decides_where_it_is_named() -> None:
    assert known_policies() == [
        "forecast",
        "dynamo",
        "dynamo:SCALE",
        "failing",
        "last",
        "lost",
        "nothing",
    ]
    with router_with(policy="last") as router:
        assert router.best_worker(PROMPT)[0] == 2
        assert router.best_worker(PROMPT, excluded_workers=[2])[0] == 1
    (variant,) = parse_policies("last", block_size=16, trace_block_size=512)
    assert (variant.mode, variant.policy) == ("kv", "last")


@pytest.mark.parametrize(
    "policy, reason",
    [
        ("unknown", "'unknown' is none of forecast, dynamo, dynamo:SCALE, failing, last"),
        ("nothing", "'nothing' .*make_nothing.* made 'no policy', which is no Policy"),
        ("failing", "'failing' .*cannot be made: OSError: no model file"),
        ("lost", "'lost' .*cannot be made: AttributeError"),
    ],
)
def test_a_policy_that_cannot_be_had_is_refused_by_its_name(policy: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"policy: {reason}"):
        new_policy(KvRouterConfig(policy=policy))


def test_what_is_passed_in_must_be_a_policy() -> None:
    with pytest.raises(ConfigError, match="strategy: 'forecast' is no Policy"):
        router_with("forecast")  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"policy": "dynamo:x"}, "policy: 'x' in 'dynamo:x' is no number"),
        ({"policy": "dynamo:-1"}, "policy: -1.0 must be finite and at least 0"),
        ({"policy": "dynamo:nan"}, "policy: nan must be finite"),
        ({"policy": "dynamo:4", "prefill_load_scale": 2.0}, "prefill_load_scale: .* has set it"),
        ({"policy": "dynamo:4", "overlap_score_weight": 2.0}, "overlap_score_weight: .* set it"),
        (
            {"policy": "forecast", "prefill_load_scale": 2.0},
            "prefill_load_scale: has no effect with the policy 'forecast'",
        ),
        (
            {"policy": "last", "router_track_prefill_tokens": False},
            "router_track_prefill_tokens: has no effect with the policy 'last'",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        KvRouterConfig(**settings)


@pytest.mark.parametrize(
    "settings, name",
    [
        ({}, "forecast"),
        ({"policy": "forecast", "router_temperature": 0.5}, "forecast"),
        ({"prefill_load_scale": 4.0}, "dynamo:4"),
        ({"overlap_score_credit": 0.5}, "dynamo:1"),
        ({"router_track_prefill_tokens": False}, "dynamo:1"),
        ({"policy": "dynamo", "prefill_load_scale": 4.0}, "dynamo:4"),
        ({"policy": "dynamo:8"}, "dynamo:8"),
        ({"policy": "dynamo:8", "mode": "random"}, "random"),
    ],
)
def test_a_knob_of_dynamos_cost_chooses_it(settings: dict[str, Any], name: str) -> None:
    config = KvRouterConfig(**settings)
    assert config.policy_name == name
    if name.startswith("dynamo"):
        assert f"dynamo:{config.cost_params.prefill_load_scale:g}" == name


def test_a_request_can_be_weighed_by_dynamos_cost_but_not_by_a_policy_that_learns() -> None:
    with router_with() as router:
        assert router.best_worker(PROMPT, "r1", overrides={"prefill_load_scale": 4.0})[2] == 0
        assert router.explain(PROMPT, overrides={"router_temperature": 1.0}).policy == "forecast"
        assert router.best_worker(PROMPT, "r2", overrides={"router_temperature": 1.0})[2] == 0
        assert router.free("r1") and router.free("r2")
    with router_with(policy="dynamo") as router:
        with pytest.raises(ConfigError, match="'forecast' learns from what it sends"):
            router.best_worker(PROMPT, overrides={"policy": "forecast"})
        assert router.best_worker(PROMPT, overrides={"policy": "last"})[0] == 2


class Faulty(Policy):
    """Answers `costs` and picks `number`; calls what can be called."""

    def __init__(self, costs: Any = None, number: Any = None) -> None:
        self.costs, self.number = costs, number

    def score(self, candidates: Candidates) -> Any:
        return self.costs(candidates) if callable(self.costs) else self.costs

    def pick(self, costs: Floats, rng: Rng) -> Any:
        return super().pick(costs, rng) if self.number is None else self.number


def broken(candidates: Candidates) -> Any:
    raise KeyError("cost")


def hide_all_and_fail(candidates: Candidates) -> Any:
    candidates.eligible = np.zeros(3, np.bool_)
    raise ValueError("hidden")


@pytest.mark.parametrize(
    "policy, reason",
    [
        (Faulty(broken), "KeyError: 'cost'"),
        (Faulty(np.zeros(2)), r"costs of shape \(2,\) for 3 workers"),
        (Faulty(np.full(3, np.nan)), "a cost is not a number"),
        (Faulty("cheap"), "could not convert string to float"),
        (Faulty(np.zeros(3), 7), "it chose worker number 7, which is not eligible"),
        (Faulty(np.zeros(3), 1), "it chose worker number 1, which is not eligible"),
        (Faulty(np.zeros(3), "one"), "'str' object cannot be interpreted as an integer"),
        (Faulty(hide_all_and_fail), "ValueError: hidden"),
        (Policy(), "NotImplementedError"),
    ],
)
def test_where_a_policy_fails_dynamos_cost_decides_and_it_is_counted(
    policy: Policy, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with router_with(policy) as router, caplog.at_level(logging.ERROR):
        for count in (1, 2):
            assert router.best_worker(PROMPT, f"r{count}", excluded_workers=[1])[0] in (0, 2)
            assert router.policy_failures == count
    (record,) = caplog.records  # not one line for each request
    assert record.levelno == logging.ERROR
    assert f"policy {type(policy).__name__!r}" in record.getMessage()
    assert pytest.importorskip("re").search(reason, record.getMessage())


def test_a_policy_may_refuse() -> None:
    with router_with(Faulty(np.full(3, np.inf))) as router:
        with pytest.raises(NoWorkersError, match="no worker is left after filtering and scoring"):
            router.best_worker(PROMPT)
        assert router.policy_failures == 0


class Diary(Policy):
    """Writes down what it hears, and fails on demand."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.fails = False

    def _hear(self, *what: Any) -> None:
        self.heard.append(what)
        if self.fails:
            raise RuntimeError("full")

    def score(self, candidates: Candidates) -> Floats:
        return np.where(candidates.eligible, 0.0, np.inf)

    def on_worker(self, number: int, entry: WorkerEntry) -> None:
        self._hear("worker", number, entry.total_kv_blocks)

    def on_worker_gone(self, number: int) -> None:
        self._hear("gone", number)

    def on_booked(self, request_id: str, number: int, candidates: Candidates) -> None:
        self._hear("booked", request_id, number, candidates.isl, candidates.now)

    def on_first_token(self, request_id: str, now: float) -> None:
        self._hear("first", request_id, now)

    def on_end(self, request_id: str, now: float, output_tokens: int | None) -> None:
        self._hear("end", request_id, now, output_tokens)


@pytest.fixture
def diary() -> Iterator[Diary]:
    yield Diary()


def test_a_policy_hears_everything_once_and_in_order(diary: Diary) -> None:
    clock = ManualClock()
    config = KvRouterConfig(block_size=16, active_request_expiry_secs=5.0)
    with KvRouter(config, clock=clock, seed=1, strategy=diary) as router:
        router.add_worker(7, total_kv_blocks=10)
        router.add_worker(7, total_kv_blocks=20)
        router.best_worker(PROMPT)  # asked, not booked
        router.best_worker(PROMPT, "a")
        clock.advance(1.0)
        router.mark_prefill_complete("a")
        router.best_worker(PROMPT, "b", pinned_worker=7)
        router.free("a", output_tokens=9)
        clock.advance(10.0)
        router.best_worker(PROMPT, "c")  # b has expired
        router.remove_worker(7)
        start = clock.now() - 11.0
    assert diary.heard == [
        ("worker", 0, 10),
        ("worker", 0, 20),
        ("booked", "a", 0, 64, start),
        ("first", "a", start + 1),
        ("booked", "b", 0, 64, start + 1),
        ("end", "a", start + 1, 9),
        ("end", "b", start + 11, None),
        ("booked", "c", 0, 64, start + 11),
        ("gone", 0),
    ]
    assert not router.registry.on_update


def test_a_policy_that_fails_to_listen_costs_no_request(
    diary: Diary, caplog: pytest.LogCaptureFixture
) -> None:
    diary.fails = True
    with router_with(diary) as router:
        router.best_worker(PROMPT, "a")
        assert router.mark_prefill_complete("a") and router.free("a")
        assert router.policy_failures == 6
    assert "on_worker: RuntimeError: full" in caplog.text


def test_ours_are_not_guarded() -> None:
    for name in ("forecast", "dynamo:2"):
        assert not isinstance(new_policy(KvRouterConfig(policy=name)), GuardedPolicy)
    with router_with() as router:
        assert router.policy_failures == 0
