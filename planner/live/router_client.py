"""RouterClient: what one router shows of its workers and requests, and the drain of a worker.

An answer that is missing, late or no number is None: that is no data, and never zero.
"""

import asyncio
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import structlog
from prometheus_client.parser import text_string_to_metric_families

from ...base.errors import UNREADABLE
from ...base.urls import redact_url

QUEUE_METRIC = "dynamo_router_queue_pending_requests"
TIMEOUT_S = 5.0
MOST_PAGES = 64
"""Of the record in one look; the rest comes with the next one."""
MAX_ANSWER_BYTES = 32 << 20
LONGEST_REQUEST_MS = 86_400e3
LONGEST_RECORD_MS = 10 * 365 * 86_400e3
"""A record that says more is not believed."""

log = structlog.get_logger(__name__)


class WorkerRow(msgspec.Struct, frozen=True):
    """A rank of a worker, as GET /workers has it."""

    worker_id: int
    state: str
    active_requests: int = 0
    active_blocks: int = 0


class RecordedRequest(msgspec.Struct, frozen=True):
    """A line of the record: see docs/record.md. Milliseconds; None where it is not known."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    status: str = "ok"
    session_id: str = ""
    worker: str = ""
    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    queue_ms: float | None = None
    cached_tokens: int | None = None

    @property
    def makes_sense(self) -> bool:
        """Whether its tokens and times can be."""
        times = (self.timestamp, self.e2e_ms or 0.0, self.ttft_ms or 0.0, self.itl_ms or 0.0)
        longest = (LONGEST_RECORD_MS, *[LONGEST_REQUEST_MS] * 3)
        in_bounds = all(0 <= each < most for each, most in zip(times, longest, strict=True))
        return in_bounds and self.input_length > 0

    @property
    def worker_id(self) -> int | None:
        number = self.worker.partition("/")[0]
        return int(number) if number.isascii() and number.isdecimal() else None


class _Workers(msgspec.Struct):
    workers: list[WorkerRow]


class RecordHeader(msgspec.Struct, frozen=True):
    """What is needed of a record's first line."""

    block_size: int
    record: str = ""


class _NumberedLine(msgspec.Struct):
    number: int
    model: str
    line: msgspec.Raw


class _RecordPage(msgspec.Struct):
    process: str
    last: int
    missed: int
    headers: dict[str, RecordHeader]
    lines: list[_NumberedLine]


class _Drain(msgspec.Struct):
    state: str = ""
    in_flight: int = 0
    drained: bool = False


@dataclass(frozen=True, slots=True)
class RouterLook:
    """A router at one moment."""

    workers: Mapping[int, WorkerRow]
    """its ranks taken together"""
    queued: float | None
    requests: tuple[RecordedRequest, ...] | None
    """those that ended since the last look; None: it keeps no record"""
    missed: int
    """of which the record has no line any more"""
    block_size: int | None
    """tokens of a hash in the record"""
    record: str
    """salt's name: hashes of two records cannot be compared"""


class RouterClient:
    """Asks one router; opened with the first question."""

    def __init__(
        self, url: str, token: str | None, tls: ssl.SSLContext | None, model: str | None
    ) -> None:
        """`model`: whose lines of the record count; None: all of them."""
        self.shown = redact_url(url)
        self._url, self._tls, self._model = url.rstrip("/"), tls, model
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None
        self._process = ""
        self._last = 0
        self._trouble = ""

    async def look(self) -> RouterLook | None:
        """None if it gives no answer that can be read."""
        try:
            answer = msgspec.json.decode(await self._ask("GET", "/workers"), type=_Workers)
            queued = await self._queued()
            requests, missed, header = await self._requests()
        except (aiohttp.ClientError, OSError, TimeoutError, *UNREADABLE) as error:
            self._note(str(error) or type(error).__name__)
            return None
        self._note("")
        workers: dict[int, WorkerRow] = {}
        for row in answer.workers:
            workers[row.worker_id] = _joined(workers.get(row.worker_id), row)
        block_size, record = (None, "") if header is None else (header.block_size, header.record)
        return RouterLook(workers, queued, requests, missed, block_size, record)

    async def drain(self, engine_id: int) -> int | None:
        """Have it send no new request to an engine; how many are left. 0 where the router has no
        such worker; None: no answer."""
        try:
            data = await self._ask("POST", f"/workers/{engine_id}/drain", b"{}", also=(404,))
            drained = msgspec.json.decode(data, type=_Drain)
        except (aiohttp.ClientError, OSError, TimeoutError, *UNREADABLE) as error:
            self._note(str(error) or type(error).__name__)
            return None
        return drained.in_flight

    async def close(self) -> None:
        """Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # closed transports leave the loop one turn later

    async def _queued(self) -> float | None:
        text = (await self._ask("GET", "/metrics")).decode("utf-8", "replace")
        return queued_in(text)

    async def _requests(
        self,
    ) -> tuple[tuple[RecordedRequest, ...] | None, int, RecordHeader | None]:
        found: list[RecordedRequest] = []
        missed, header = 0, None
        for _ in range(MOST_PAGES):
            data = await self._ask("GET", f"/record?since={self._last}", also=(404,))
            if not data.startswith(b'{"process"'):
                return None, 0, None
            page = msgspec.json.decode(data, type=_RecordPage)
            if page.process != self._process:  # it began anew, or we did: from here on
                begins = not self._process
                self._process, self._last = page.process, page.last if begins else 0
                if begins:
                    break
                continue
            missed += page.missed
            for numbered in page.lines:
                if self._model in (None, "", numbered.model) or not numbered.model:
                    header = page.headers.get(numbered.model, header)
                    found.append(msgspec.json.decode(numbered.line, type=RecordedRequest))
            self._last = page.lines[-1].number if page.lines else page.last
            if self._last >= page.last:
                break
        return tuple(found), missed, header

    async def _ask(
        self, method: str, path: str, body: bytes | None = None, also: tuple[int, ...] = ()
    ) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
            )
        more: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls}
        if body is not None:
            more["headers"] = {"Content-Type": "application/json"}
        async with self._session.request(
            method, self._url + path, data=body, allow_redirects=False, **more
        ) as answer:
            data = await answer.content.read(MAX_ANSWER_BYTES)
            while len(data) < MAX_ANSWER_BYTES and not answer.content.at_eof():
                data += await answer.content.read(MAX_ANSWER_BYTES - len(data))
            if answer.status != 200 and answer.status not in also:
                text = data[:200].decode("utf-8", "replace")
                raise aiohttp.ClientError(f"{method} {path}: status {answer.status} {text}")
            return data

    def _note(self, trouble: str) -> None:
        """Log once that a router cannot be seen, and once that it can."""
        if bool(trouble) != bool(self._trouble):
            if trouble:
                log.warning("no data from a router", router=self.shown, error=trouble[:300])
            else:
                log.info("a router answers again", router=self.shown)
        self._trouble = trouble


def queued_in(page: str) -> float | None:
    """Requests that wait for admission, of all pools on a page of metrics; None if it has no such
    metric, or one that is no number."""
    found = None
    try:
        for family in text_string_to_metric_families(page):
            if family.name == QUEUE_METRIC:
                found = (found or 0.0) + sum(sample.value for sample in family.samples)
    except ValueError:
        return None
    return found if found is not None and math.isfinite(found) and found >= 0 else None


def _joined(known: WorkerRow | None, row: WorkerRow) -> WorkerRow:
    if known is None:
        return row
    states = (known.state, row.state)
    state = next((state for state in states if state != "ready"), "ready")
    return WorkerRow(
        row.worker_id,
        state,
        known.active_requests + row.active_requests,
        known.active_blocks + row.active_blocks,
    )
