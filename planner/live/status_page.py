"""StatusPage: what the planner shows over HTTP: /metrics, /plan, /health and /live."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from ...base.urls import joined
from ...server.metrics import (
    MetricsPage,
    build_metrics,
    counter_by,
    gauges,
    source,
)
from ...server.services import MetricsRoute
from ...transport.http1 import Application, HttpCall, HttpListener, answer_json, plain_error
from ..fleet import Fleet
from .live_planner import LivePlanner
from .transaction import EngineState

MAX_BODY_BYTES = 1 << 10


class StatusPage:
    """Listens from `start` to `close`. It changes nothing, so that callers need no role."""

    def __init__(self, planner: LivePlanner) -> None:
        self._planner = planner
        page = MetricsPage(planner_metrics(planner), build_metrics)
        routes = {
            **MetricsRoute(page).routes,
            "GET /plan": self._on_plan,
            "GET /health": self._on_health,
            "GET /live": self._on_live,
        }
        application = Application(routes, plain_error, max_body_bytes=MAX_BODY_BYTES)
        self._listener = HttpListener(application)
        self.address = ""

    async def start(self, host: str, port: int) -> None:
        """Port 0 takes a free one. ConfigError if it cannot be had."""
        taken = await self._listener.start(host, port, key="port")
        self.address = joined(host, taken)

    async def close(self) -> None:
        """Idempotent."""
        await self._listener.close()

    async def _on_plan(self, call: HttpCall) -> None:
        planner, seen = self._planner, self._planner.seen
        shown: dict[str, Any] = {
            "leads": planner.leads,
            "text": planner.text,
            "wanted": planner.wanted,
            "decision": planner.open_decision,
            "engines": [] if seen is None else seen.engines,
            "queued": None if seen is None else seen.queued,
            "trouble": "" if seen is None else seen.trouble,
        }
        await answer_json(call, shown)

    async def _on_health(self, call: HttpCall) -> None:
        seen = self._planner.seen
        ready = seen is not None and not seen.trouble
        text = "has not looked yet" if seen is None else seen.trouble
        await answer_json(call, {"ready": ready, "reason": text}, status=200 if ready else 503)

    async def _on_live(self, call: HttpCall) -> None:
        await answer_json(call, {"status": "live"})


@source
def planner_metrics(planner: LivePlanner) -> Iterator[Metric]:
    """What is wanted, what is there, and what became of decisions. A number that is not known has
    no sample."""
    seen, wanted = planner.seen, planner.wanted
    if wanted is not None:
        yield _by_pool(
            "dynamo_planner_desired_replicas", "Engines that are asked for, by pool.", wanted
        )
    if seen is not None:
        family = GaugeMetricFamily(
            "dynamo_planner_observed_replicas",
            "Engines that are registered, by pool and state: starting, ready or draining.",
            labels=["pool", "state"],
        )
        for state in EngineState:
            for role, count in seen.count(state):
                family.add_metric([role, state.value], count)
        yield family
        if seen.queued is not None:
            yield from gauges(
                "dynamo_planner_",
                ("observed_queued", "Requests that wait at the routers.", seen.queued),
            )
    yield from gauges(
        "dynamo_planner_",
        ("leads", "1 if this planner holds the lock, else 0.", int(planner.leads)),
        ("decision_open", "1 while a decision is being done.", int(bool(planner.open_decision))),
        (
            "no_data",
            "1 while a router gives no data, and nothing is planned.",
            int(seen is None or bool(seen.trouble)),
        ),
    )
    yield counter_by(
        "outcome",
        "dynamo_planner_decisions",
        "Decisions that ended: done or abandoned.",
        _with_all(planner.outcomes, ("done", "abandoned")),
    )
    yield counter_by(
        "of",
        "dynamo_planner_errors",
        "Turns that were not completed, by what failed: store, connector or plan.",
        _with_all(planner.errors, ("store", "connector", "plan")),
    )


def _by_pool(name: str, help: str, fleet: Fleet) -> Metric:
    family = GaugeMetricFamily(name, help, labels=["pool"])
    for role, count in fleet:
        family.add_metric([role], count)
    return family


def _with_all(counts: Mapping[str, int], names: tuple[str, ...]) -> dict[str, float]:
    return {name: counts.get(name, 0) for name in names}
