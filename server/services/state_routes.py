"""How a server is, over HTTP: /metrics, /record, /health, /ping, /live and /version."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ...base.package_version import package_version
from ...transport.http1 import HttpCall, HttpError, Routes, answer_json, answer_whole
from ..metrics import MetricsPage
from ..record import Recorder
from ..server_parts import ServerParts

Health = Callable[[], tuple[bool, dict[str, Any]]]
"""Whether requests can be served now, and more on it for people."""

WRITTEN_AT_ONCE = 64 << 10
"""Bytes of a page: the kernel copies them while the event loop waits, over loopback twice."""


class MetricsRoute:
    """The route of a metrics page."""

    def __init__(self, metrics: MetricsPage) -> None:
        self._metrics = metrics

    @property
    def routes(self) -> Routes:
        return {"GET /metrics": self._on_metrics}

    async def _on_metrics(self, call: HttpCall) -> None:
        asked = call.headers
        page = await self._metrics.render(asked.get("accept", ""), asked.get("accept-encoding", ""))
        headers = {"content-type": page.content_type, "vary": "Accept, Accept-Encoding"}
        if page.gzip:
            headers["content-encoding"] = "gzip"
        body = memoryview(page.body)
        await answer_whole(call, body[:WRITTEN_AT_ONCE], headers, length=len(body))
        for begin in range(WRITTEN_AT_ONCE, len(body), WRITTEN_AT_ONCE):
            await asyncio.sleep(0)
            part = body[begin : begin + WRITTEN_AT_ONCE]
            more = begin + len(part) < len(body)
            await call.send({"type": "http.response.body", "body": part, "more_body": more})


class RecordRoute:
    """The newest lines of the record, for a planner: see docs/record.md."""

    def __init__(self, recorder: Recorder | None) -> None:
        """None: no request is recorded, and there is no route."""
        self._recorder = recorder

    @property
    def routes(self) -> Routes:
        return {} if self._recorder is None else {"GET /record": self._on_record}

    async def _on_record(self, call: HttpCall) -> None:
        assert self._recorder is not None, "it has no route"
        since = call.parameters.get("since", "0")
        if not (since.isascii() and since.isdecimal() and len(since) <= 15):
            raise HttpError(400, f"since {since[:40]!r} is not the number of a line")
        tail = self._recorder.tail
        lines, missed, last = tail.since(int(since), WRITTEN_AT_ONCE)
        page = {
            "process": tail.process,
            "last": last,
            "missed": missed,
            "headers": {name: msgspec.Raw(line) for name, line in self._recorder.headers.items()},
            "lines": [
                {"number": each.number, "model": each.model, "line": msgspec.Raw(each.line)}
                for each in lines
            ],
        }
        await answer_json(call, page)


class HealthRoutes:
    """Whether a server serves, and whether it runs."""

    def __init__(self, health: Health, parts: ServerParts) -> None:
        """`health` is that of the workers."""
        self._health, self._parts = health, parts

    @property
    def routes(self) -> Routes:
        return {
            "GET /health": self._on_health,
            "GET /ping": self._on_health,
            "GET /live": self._on_live,
            "GET /version": self._on_version,
        }

    async def _on_health(self, call: HttpCall) -> None:
        ready, more = self._health()
        ready = ready and not self._parts.draining
        more |= await self._parts.siblings.health()
        health = {"status": "ready" if ready else "not ready", **more}
        await answer_json(call, health, status=200 if ready else 503)

    async def _on_live(self, call: HttpCall) -> None:
        await answer_json(call, {"status": "live"})

    async def _on_version(self, call: HttpCall) -> None:
        await answer_json(call, {"version": package_version()})
