"""A policy that is only compared: counted, and without effect on what is served."""

import random
from typing import Any

import numpy as np
import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.base.errors import ConfigError, NoWorkersError
from dynamo_router.router import KvRouter, KvRouterConfig
from dynamo_router.router.policy import Candidates, Policy, Rng, Shadow

PROMPT = list(range(256))


def router_of(**settings: Any) -> KvRouter:
    config = KvRouterConfig(block_size=16, use_kv_events=False, seed=1, **settings)
    router = KvRouter(config, clock=ManualClock())
    for worker in range(1, 5):
        router.add_worker(worker, address=f"w:{worker}")
    return router


def numbers_of(router: KvRouter, requests: int = 60) -> list[int]:
    draw = random.Random(3)
    chosen = []
    for at in range(requests):
        prompt = PROMPT[: 16 * draw.randrange(1, 17)]
        chosen.append(router.decide(prompt, f"r{at}").worker.worker_id)
        if at % 3 == 2:
            router.free(f"r{at - 1}")
    return chosen


@pytest.mark.parametrize("shadow", ["round-robin", "dynamo", "dynamo:0.2", "forecast", "random"])
@pytest.mark.parametrize("serving", ["forecast", "dynamo"])
def test_what_is_served_is_the_same_and_each_request_is_counted(serving: str, shadow: str) -> None:
    with (
        router_of(policy=serving) as alone,
        router_of(policy=serving, shadow_policy=shadow) as compared,
    ):
        assert numbers_of(compared) == numbers_of(alone)
        assert alone.shadow is None and compared.shadow is not None
        outcomes = compared.shadow.outcomes
        assert sum(outcomes.values()) == 60 and outcomes["failed"] == 0
        if shadow == serving == "dynamo":
            assert outcomes["same"] > 40  # but for ties, which each draws for itself
        if shadow == "random":
            assert outcomes["other"] > 20


def test_it_says_how_much_sooner_or_later_by_the_forecast() -> None:
    with router_of(policy="dynamo", shadow_policy="forecast") as router:
        shadow = router.shadow
        assert shadow is not None
        numbers_of(router)
        assert shadow.outcomes["other"] > 0
        assert shadow.sooner_s > 0 and shadow.later_s >= 0


def test_pinned_requests_and_own_settings_are_not_compared() -> None:
    with router_of(shadow_policy="random") as router:
        assert router.shadow is not None
        router.decide(PROMPT, "a", pinned_worker=2)
        router.decide(PROMPT, "b", overrides={"router_temperature": 0.5})
        assert sum(router.shadow.outcomes.values()) == 0
        router.decide(PROMPT, "c")
        assert sum(router.shadow.outcomes.values()) == 1


class _Fails(Policy):
    def score(self, candidates: Candidates) -> Any:
        candidates.eligible = np.zeros_like(candidates.eligible)
        candidates.chosen = 0, 99.0
        raise NoWorkersError("never")

    def choose(self, candidates: Candidates, rng: Rng) -> int:
        assert candidates.bound is None
        return int(self.score(candidates)[0])


def test_its_failures_are_counted_and_leave_the_candidates_as_they_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with router_of(policy="dynamo") as router:
        shadow = Shadow("mine", _Fails(), random.Random(1))
        router.shadow = shadow  # no package offers one that fails
        for at in range(3):
            router.decide(PROMPT, f"r{at}")
        assert shadow.outcomes == {"same": 0, "other": 0, "failed": 3}
    assert [record.message for record in caplog.records] == [
        "shadow policy 'mine' failed, 1 times so far; requests are not affected:"
        " NoWorkersError: never"
    ]


def test_bad_names_and_modes_are_refused() -> None:
    with pytest.raises(ConfigError, match="shadow_policy: 'nope' is none of forecast, dynamo"):
        router_of(shadow_policy="nope")
    with pytest.raises(ConfigError, match="shadow_policy.*not in mode random"):
        router_of(mode="random", shadow_policy="forecast")
    with pytest.raises(ConfigError, match="shadow_policy.*cannot be made.*no number"):
        router_of(shadow_policy="dynamo:x")
