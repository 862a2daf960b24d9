"""The pages on metrics and observability name every metric with its HELP text, every alert and log
field, and no other."""

import re
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs
from support.fake_engine import FakeEngine, fail, prompt
from support.observability.metric_tables import SECTIONS, documented, generated
from support.observability.seen_fleet import seen_fleet
from support.places import ROOT
from support.rig import Rig

from dynamo_router.base.clock import SystemClock
from dynamo_router.base.errors import StatusCode
from dynamo_router.base.request_record import Generation, RequestRecord
from dynamo_router.process.logs import UNLIMITED
from dynamo_router.server.dispatch import AccessLog, Request, log_answer
from dynamo_router.server.dispatch.observers import NoObserver, OtherCall

DOC = (ROOT / "docs" / "observability.md").read_text()
GONE = StatusCode.UNAVAILABLE


async def test_the_tables_of_metrics_are_those_of_a_fleet(tmp_path: Path) -> None:
    """Else: python -m support.observability.metric_tables, in tests/."""
    async with seen_fleet(tmp_path) as page:
        tables = generated(page)
    assert tables == {title: rows for title, rows in documented().items() if title in tables}
    assert set(tables) | {"Endpoint pickers"} == set(documented()) == set(SECTIONS)


def test_every_alert_is_documented_with_its_severity() -> None:
    path = ROOT / "server" / "metrics" / "dashboards" / "dynamo-router-alerts.yaml"
    rules = yaml.safe_load(path.read_text())["groups"][0]["rules"]
    rows = re.findall(r"^\| `(\w+)` \| (info|warning|critical) \|", DOC, re.MULTILINE)
    assert rows == [(rule["alert"], rule["labels"]["severity"]) for rule in rules]


def fields_of(event: str) -> set[str]:
    """Those in the table below an event's paragraph."""
    section = DOC.split(f"\n`{event}` (")[1]
    table = section.split("|---|---|\n")[1].split("\n\n")[0]
    return {
        name for row in table.splitlines() for name in re.findall("`(\\w+)`", row.split("|")[1])
    }


class Keeping(NoObserver):
    """Keeps the requests that ended."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def on_end(
        self, request: Request | None, code: StatusCode, other: OtherCall | None = None
    ) -> None:
        self.requests += () if request is None else (request,)


def over_http(engine_requests: list[Request]) -> RequestRecord:
    """A request over HTTP of which there is everything to log."""
    headers = [(b"x-request-id", b"a b"), (b"traceparent", b"00-%b-1-01" % (b"a" * 32))]
    scope = {"method": "POST", "client": ("127.0.0.1", 1), "headers": headers}
    record = RequestRecord(scope, route="/v1/completions", caller="ann", model="m", error="why")
    record.status = 503
    record.generation = lambda: Generation(1, 2, 0, record.began, ())
    record.engine_requests = list(engine_requests)
    return record


@pytest.mark.parametrize("event", ["request failed", "request ended"])
async def test_log_lines_have_the_documented_fields(event: str) -> None:
    seen: set[str] = set()
    kept = Keeping()
    access = AccessLog(SystemClock(), kept)
    async with Rig(FakeEngine(fail(GONE, "gone")), FakeEngine(), observer=access) as rig:
        with capture_logs() as logs:
            for number in range(4):
                await rig.answers(prompt(f"r{number}"))
            await rig.engines[1].stop()
            await rig.refusal(prompt("lost"))
            await rig.settled()
            log_answer(over_http(kept.requests))
    for line in logs:
        if line["event"] == event:
            seen |= set(line) - {"event", "log_level", UNLIMITED}
    assert seen and seen <= fields_of(event)
    assert fields_of(event) - seen <= {"breaks_workers", "http_request_id"}
