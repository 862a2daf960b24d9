"""The dashboard of a frontend: one page for all pools, and the data of the one it looks at."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

from ...server.dashboard import PageData, PageFiles
from ...server.fronts import SharedPages, Siblings
from ..application import Handler, HttpCall, answer_json
from ..asgi import send_whole
from ..openai import ApiError
from .model_manager import ModelManager
from .model_pool import ModelPool

_PAGE = "/dashboard/page/"


class PoolDashboard:
    """Handlers by route. A request names its pool, by model and label; without a name it is the
    first one that serves."""

    def __init__(self, models: ModelManager, siblings: Siblings) -> None:
        self._models = models
        self._shared = SharedPages(siblings, self._own_data)
        self._files = PageFiles()

    @property
    def routes(self) -> dict[str, Handler]:
        return {
            "GET /dashboard": self._on_page,
            "GET /dashboard/page/{file}": self._on_page,
            "GET /dashboard/state": self._on_state,
            "GET /dashboard/caches": self._on_caches,
            "GET /dashboard/receipt": self._on_receipt,
            "POST /dashboard/what-if": self._on_what_if,
        }

    async def _on_page(self, call: HttpCall) -> None:
        name = call.path.removeprefix(_PAGE) if call.path.startswith(_PAGE) else "index.html"
        found = self._files.file(name, call.headers.get("if-none-match"))
        if found is None:
            raise ApiError(404, f"there is no {call.path} here")
        await send_whole(call.send, found.status, found.body, {**found.headers, **call.told})

    async def _on_state(self, call: HttpCall) -> None:
        asked, pools = _query(call), self._pools
        pool = self._chosen(asked, pools)
        told: dict[str, Any] = {}
        if pool is not None and (data := self._data_of(pool)) is not None:
            # A worker is drained where it is registered: nothing is changed from here.
            told = await data.state(asked, call.caller.roles, changes=False)
        told["pools"] = [_told(each) for each in pools]
        told["pool"] = None if pool is None else _key(pool)
        told["refused_cards"] = len(self._models.report["refused"])
        await answer_json(call, told)

    async def _on_caches(self, call: HttpCall) -> None:
        await answer_json(call, await self._data(call).caches())

    async def _on_receipt(self, call: HttpCall) -> None:
        status, told = await self._data(call).receipt(_query(call))
        await answer_json(call, told, status=status)

    async def _on_what_if(self, call: HttpCall) -> None:
        status, told = await self._data(call).what_if(call.body)
        await answer_json(call, told, status=status)

    @property
    def _pools(self) -> list[ModelPool]:
        return sorted(self._models.pools, key=lambda pool: pool.name)

    def _data(self, call: HttpCall) -> PageData:
        pool = self._chosen(_query(call), self._pools)
        data = None if pool is None else self._data_of(pool)
        if data is None:
            raise ApiError(404, "there is no such pool, or it does not serve yet")
        return data

    def _data_of(self, pool: ModelPool) -> PageData | None:
        own = pool.page_data
        return None if own is None else self._shared.data(_key(pool), own)

    def _own_data(self, key: str) -> PageData | None:
        found = (pool.page_data for pool in self._models.pools if _key(pool) == key)
        return next(found, None)

    def _chosen(self, asked: dict[str, str], pools: Sequence[ModelPool]) -> ModelPool | None:
        wanted = asked.get("pool", "")
        if wanted:
            return next((pool for pool in pools if _key(pool) == wanted), None)
        serving = (pool for pool in pools if pool.page_data is not None)
        return next(serving, None)


def _key(pool: ModelPool) -> str:
    return f"{pool.name.model} {pool.label}"


def _told(pool: ModelPool) -> dict[str, Any]:
    return {
        "key": _key(pool),
        "model": pool.name.model,
        "endpoint": str(pool.name.endpoint),
        "card": pool.name.checksum[:8],
        "block_size": pool.found.card.block_size,
        "state": pool.state,
        "reason": pool.reason,
        "share": pool.share,
        "workers": sum(pool.states.values()),
        "in_flight": pool.in_flight,
    }


def _query(call: HttpCall) -> dict[str, str]:
    return dict(parse_qsl(call.query.decode("latin-1")))
