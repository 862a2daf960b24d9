"""POST /clear_kv_blocks: empty the caches of all workers of a pool, and answer each one's result.

What an engine cleared comes to the index by the engine's own event, as of any change of its cache;
what was predicted of it, since it reports nothing or has not reported yet, is forgotten here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import structlog

from ...base.errors import RouterError, StatusCode
from ...router.kv_router import KvRouter
from ...transport.http1 import HttpCall, HttpError, Routes, answer_json
from ...workers.engine_table import WatchedEngine
from ...workers.failures import EngineCallError, shortened
from ...workers.health import HealthMonitor
from ..metrics import Labels

CLEAR_TIMEOUT_S = 5.0
"""How long a worker may take."""
AT_A_TIME = 64
"""Workers that are asked at the same time."""
_LONGEST_TEXT = 300

log = structlog.get_logger(__name__)
Forget = Callable[[Sequence[int]], Awaitable[None]]
"""Has all processes forget what they predicted of these workers."""


class CacheClearing:
    """Of one pool."""

    def __init__(self, monitor: HealthMonitor, router: KvRouter) -> None:
        self._monitor, self._router = monitor, router

    def forget(self, worker_ids: Sequence[int]) -> None:
        """Predict nothing of what these workers have cached, if they are of this pool."""
        for worker_id in worker_ids:
            self._router.forget_predictions(worker_id)

    async def clear(self) -> list[dict[str, Any]]:
        """Ask every worker, well or not; a row for each, with `error` where it did not."""
        turns = asyncio.Semaphore(AT_A_TIME)
        engines = list(self._monitor.engines)
        return await asyncio.gather(*(self._clear(engine, turns) for engine in engines))

    async def _clear(self, engine: WatchedEngine, turns: asyncio.Semaphore) -> dict[str, Any]:
        row = {"worker_id": engine.worker_id, "address": engine.url.address}
        try:
            async with turns:
                await engine.client.clear_kv_blocks(timeout=CLEAR_TIMEOUT_S)
        except EngineCallError as error:
            unknown = error.code() is StatusCode.UNIMPLEMENTED
            text = "the engine does not implement this call" if unknown else error.details()
            return {**row, "error": shortened(text)[:_LONGEST_TEXT]}
        except RouterError as error:
            return {**row, "error": shortened(str(error))[:_LONGEST_TEXT]}
        return row


class CacheClearingRoute:
    """The route, for the pools that there are: all of them, or with `?model=` those of a model."""

    def __init__(
        self, pools: Callable[[], Iterable[tuple[Labels, CacheClearing]]], forget: Forget
    ) -> None:
        self._pools, self._forget = pools, forget

    @property
    def routes(self) -> Routes:
        return {"POST /clear_kv_blocks": self._on_clear}

    async def _on_clear(self, call: HttpCall) -> None:
        model = call.parameters.get("model")
        pools = [(labels, pool) for labels, pool in self._pools()
                 if model is None or labels.get("model") == model]  # fmt: skip
        if model is not None and not pools:
            raise HttpError(404, f"there is no pool of the model {model[:100]!r}")
        found = await asyncio.gather(*(pool.clear() for _, pool in pools))
        rows = [
            {**row, **labels}
            for (labels, _), rows in zip(pools, found, strict=True)
            for row in rows
        ]
        cleared = [row for row in rows if "error" not in row]
        await self._forget([row["worker_id"] for row in cleared if row["worker_id"] is not None])
        failed = [row for row in rows if "error" in row]
        log.info("caches cleared", workers=len(cleared), failed=len(failed))
        await answer_json(call, {"cleared_workers": cleared, "failed_workers": failed})
