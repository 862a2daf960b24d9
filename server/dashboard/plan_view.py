"""PlanView: what a planner has written into the store, for the page."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ...base.clock import Clock
from ...base.errors import UNREADABLE
from ...runtime.kv_stores import KeyValueStore, StoreError
from ...transport.http1 import HttpCall, HttpError, Routes, answer_json
from ...workers.records import read_plan

READ_EVERY_S = 2.0
"""However many pages look."""
SHOWN_DECISIONS = 40
TIMEOUT_S = 3.0


class PlanView:
    """Reads the store when a page asks, from the first time on until `close`."""

    def __init__(
        self, open_store: Callable[[], KeyValueStore | None], namespace: str, clock: Clock
    ) -> None:
        """`open_store`: None where there is no store."""
        self._open_store, self._namespace, self._now = open_store, namespace, clock.now
        self._store: KeyValueStore | None = None
        self._reading = asyncio.Lock()
        self._read: tuple[float, dict[str, Any]] | None = None

    @property
    def routes(self) -> Routes:
        return {"GET /dashboard/plan": self._on_plan}

    async def read(self) -> dict[str, Any]:
        """The newest decisions, the newest first, and the planner's status, None where no planner
        has written one. StoreError."""
        async with self._reading:
            if self._read is None or self._now() - self._read[0] >= READ_EVERY_S:
                self._read = self._now(), await self._look()
            return self._read[1]

    async def close(self) -> None:
        """Idempotent."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def _look(self) -> dict[str, Any]:
        if self._store is None:
            self._store = self._open_store()
        if self._store is None:
            return {"status": None, "decisions": []}
        try:
            async with asyncio.timeout(TIMEOUT_S):
                texts, status = await read_plan(self._store, self._namespace)
        except TimeoutError:
            raise StoreError("the store gives no answer in time") from None
        decisions = [_json(text) for text in reversed(texts[-SHOWN_DECISIONS:])]
        return {
            "status": None if status is None else _json(status),
            "decisions": [each for each in decisions if each is not None],
        }

    async def _on_plan(self, call: HttpCall) -> None:
        try:
            await answer_json(call, await self.read())
        except StoreError as error:
            raise HttpError(503, str(error)) from None


def _json(text: bytes) -> Any:
    """Without the scores of what was not chosen, which are many; None for what is no object."""
    try:
        found = msgspec.json.decode(text)
    except UNREADABLE:
        return None
    if not isinstance(found, dict):
        return None
    if isinstance(decision := found.get("decision"), dict):
        decision.pop("scores", None)
    return found
