"""The dashboard's routes: its page, and its data in JSON, of one pool or of several."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ...transport.http1 import HttpCall, HttpError, Routes, answer_json, answer_whole
from .overview import OverviewQuestion, ReadOverview
from .pages import PageData, PageFiles, read_count


class ShownPool(Protocol):
    """A pool that the page can look at."""

    @property
    def page_data(self) -> PageData | None:
        """None before it serves."""
        ...

    @property
    def summary(self) -> Mapping[str, Any]:
        """Its line in the list of pools; `key` is what a request names it by."""
        ...


class PagedPool(NamedTuple):
    """A pool with its data, or those that another process has of it."""

    page_data: PageData | None
    summary: Mapping[str, Any] = {}


Listing = Callable[[], dict[str, Any]]


class DashboardRoutes:
    """The page needs no role, as it has nothing in it; its data does.

    A request names its pool; without a name it is the first one that serves.
    """

    def __init__(
        self,
        pools: Callable[[], Sequence[ShownPool]],
        overview: ReadOverview,
        listing: Listing | None = None,
    ) -> None:
        """`listing`, where there may be several pools: what the page shows beside the list of them.
        Their workers are those of a store: the page changes none."""
        self._pools, self._overview, self._listing = pools, overview, listing
        self._files = PageFiles()

    @property
    def routes(self) -> Routes:
        return {
            "GET /dashboard": self._on_page,
            "GET /dashboard/page/{file}": self._on_page,
            "GET /dashboard/state": self._on_state,
            "GET /dashboard/overview": self._on_overview,
            "GET /dashboard/caches": self._on_caches,
            "GET /dashboard/receipt": self._on_receipt,
            "POST /dashboard/what-if": self._on_what_if,
        }

    async def _on_page(self, call: HttpCall) -> None:
        name = call.values.get("file", "index.html")
        found = self._files.file(name, call.headers.get("if-none-match"))
        if found is None:
            raise HttpError(404, f"there is no {call.path} here")
        await answer_whole(call, found.body, found.headers, status=found.status)

    async def _on_state(self, call: HttpCall) -> None:
        pool, state = self._chosen(call), dict[str, Any]()
        if pool is not None and (data := pool.page_data) is not None:
            state = await data.state(
                call.parameters, call.caller.roles, changes=self._listing is None
            )
        if self._listing is not None:
            state["pools"] = [each.summary for each in self._pools()]
            state["pool"] = None if pool is None else pool.summary["key"]
            state |= self._listing()
        await answer_json(call, state)

    async def _on_overview(self, call: HttpCall) -> None:
        asked = call.parameters
        since = read_count(asked.get("since", ""), -1)
        question = OverviewQuestion(asked.get("model", ""), since)
        await answer_json(call, await self._overview(question))

    async def _on_caches(self, call: HttpCall) -> None:
        await answer_json(call, await self._data(call).caches())

    async def _on_receipt(self, call: HttpCall) -> None:
        status, receipt = await self._data(call).receipt(call.parameters)
        await answer_json(call, receipt, status=status)

    async def _on_what_if(self, call: HttpCall) -> None:
        status, answer = await self._data(call).what_if(call.body)
        await answer_json(call, answer, status=status)

    def _data(self, call: HttpCall) -> PageData:
        pool = self._chosen(call)
        data = None if pool is None else pool.page_data
        if data is None:
            raise HttpError(404, "there is no such pool, or it does not serve yet")
        return data

    def _chosen(self, call: HttpCall) -> ShownPool | None:
        wanted, pools = call.parameters.get("pool", ""), self._pools()
        if wanted:
            return next((pool for pool in pools if pool.summary.get("key") == wanted), None)
        return next((pool for pool in pools if pool.page_data is not None), None)
