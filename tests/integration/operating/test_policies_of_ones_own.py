"""Policies that users bring and that misbehave: what clients get over each door, what is counted
and what the log says."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from grpc import aio
from support.calls import messages_of
from support.fake_engine import FakeEngine, prompt
from support.servers.openai_serving import BLOCK, Served, openai_serving

from dynamo_router.router import policies
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.policy import Candidates, Policy
from dynamo_router.server.observability import ObservabilityConfig
from dynamo_router.workers.trtllm_proto import SERVICE

REQUESTS = 3
"""Over each door."""


class Own(Policy):
    """Its costs are what `costs` makes of the candidates."""

    name = "own"

    def __init__(self, costs: Callable[[Candidates], Any]) -> None:
        self._costs = costs
        self.served: Served | None = None

    def score(self, candidates: Candidates) -> Any:
        return self._costs(candidates)


def even(candidates: Candidates) -> Any:
    return np.where(candidates.eligible, 0.0, np.inf)


def raises(candidates: Candidates) -> Any:
    raise ZeroDivisionError("of one's own")


def slow(candidates: Candidates) -> Any:
    time.sleep(0.05)
    return even(candidates)


class Gone(Own):
    """Chooses a worker, which leaves before it says so."""

    def pick(self, costs: Any, rng: Any) -> int:
        number = int(super().pick(costs, rng))
        assert self.served is not None
        router = self.served.server.router
        if len(router.registry) > 1:
            router.remove_worker(router.registry.worker(number).worker_id)
        return number


async def over_grpc(served: Served) -> tuple[grpc.StatusCode, int]:
    async with aio.insecure_channel(served.server.grpc_address) as channel:
        call: Any = channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        try:
            return grpc.StatusCode.OK, len(
                await messages_of(call(prompt("one", 12).SerializeToString()))
            )
        except aio.AioRpcError as error:
            return error.code(), 0


async def over_http(served: Served) -> int:
    body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 3}
    status: int = (await served.post("/v1/completions", body))[0]
    return status


async def ask_all(policy: Own, monkeypatch: pytest.MonkeyPatch, **more: Any) -> dict[str, Any]:
    point = SimpleNamespace(name="own", value="own:policy", load=lambda: lambda config: policy)
    monkeypatch.setattr(policies, "offered", lambda: [point])
    router = KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1, policy="own")
    engines = FakeEngine(worker_id=1), FakeEngine(worker_id=2)
    async with openai_serving(*engines, router=router, **more) as served:
        policy.served = served
        grpc_ends = [await over_grpc(served) for _ in range(REQUESTS)]
        http_ends = [await over_http(served) for _ in range(REQUESTS)]
        url = f"http://{served.server.http_address}/metrics"
        async with served.session.get(url) as answer:
            page = await answer.text()
        return {
            "grpc": grpc_ends,
            "http": http_ends,
            "booked": int(served.server.router.slots.active_requests().sum()),
            "failures": served.server.router.policy_failures,
            "page": page,
        }


@pytest.mark.parametrize(
    ("costs", "why"),
    [
        (raises, "ZeroDivisionError: of one's own"),
        (lambda c: np.full(len(c.eligible), np.nan), "a cost is not a number"),
        (lambda c: np.full(len(c.eligible), -np.inf), "a cost is minus infinity"),
        (lambda c: np.where(np.arange(len(c.eligible)) == 0, -np.inf, 1.0), "minus infinity"),
        (lambda c: np.zeros(len(c.eligible) + 1), "costs of shape"),
        (lambda c: None, "costs of shape"),
    ],
    ids=["raises", "nan", "minus infinity", "one of minus infinity", "length", "nothing"],
)
async def test_where_it_fails_dynamos_cost_decides(
    costs: Any, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = await ask_all(Own(costs), monkeypatch)
    assert [code for code, _ in found["grpc"]] == [grpc.StatusCode.OK] * REQUESTS
    assert found["http"] == [200] * REQUESTS and found["booked"] == 0
    assert found["failures"] >= 2 * REQUESTS
    assert f"dynamo_router_policy_failures_total {float(found['failures'])}" in found["page"]
    (line,) = [each.getMessage() for each in caplog.records if "policy" in each.getMessage()]
    assert "'own' failed" in line and why in line


async def test_infinite_costs_are_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await ask_all(Own(lambda c: np.full(len(c.eligible), np.inf)), monkeypatch)
    assert {code for code, _ in found["grpc"]} == {grpc.StatusCode.UNAVAILABLE}
    assert set(found["http"]) == {503}
    assert (found["failures"], found["booked"]) == (0, 0)


async def test_a_worker_that_leaves_in_the_same_turn_costs_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = await ask_all(Gone(even), monkeypatch)
    assert [code for code, _ in found["grpc"]] == [grpc.StatusCode.OK] * REQUESTS
    assert found["http"] == [200] * REQUESTS and found["booked"] == 0
    assert found["failures"] == 1, "one of the two workers stays"
    (line,) = [each.getMessage() for each in caplog.records if "failed" in each.getMessage()]
    assert "which is not eligible" in line


async def test_one_that_takes_long_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = await ask_all(Own(slow), monkeypatch)
    assert [code for code, _ in found["grpc"]] == [grpc.StatusCode.OK] * REQUESTS
    assert found["http"] == [200] * REQUESTS and found["failures"] == 0
    (line,) = [each.getMessage() for each in caplog.records if "policy" in each.getMessage()]
    assert "'own' took" in line
    assert f"dynamo_router_policy_slow_decisions_total {2.0 * REQUESTS}" in found["page"]


async def test_what_it_says_of_times_reaches_no_client_if_it_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Odd(Own):
        def relief_s(self, eligible: Any, now: float) -> Any:
            return float("nan")

        def cold_s(self, isl: int) -> Any:
            return "soon"

        def foresee(self, candidates: Candidates, number: int) -> Any:
            return "well"

        def foreseen_ttft_s(self, request_id: str) -> Any:
            return ("a", "b")

        def residuals(self) -> Any:
            return "none"

    found = await ask_all(
        Odd(even), monkeypatch, observability=ObservabilityConfig(access_log=True)
    )
    assert [code for code, _ in found["grpc"]] == [grpc.StatusCode.OK] * REQUESTS
    assert found["http"] == [200] * REQUESTS and found["failures"] > 0
