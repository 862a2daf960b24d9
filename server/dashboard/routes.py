"""The dashboard's routes for the HTTP server, which guards them: its page, its data in JSON."""

from aiohttp import hdrs, web

from ...transport.http_site import json_response
from ..access import current_caller
from .pages import PageData, PageFiles


class DashboardRoutes:
    """The page is for everybody who gets here: it has nothing in it. Its data needs a role."""

    def __init__(self, data: PageData) -> None:
        self._data = data
        self._files = PageFiles()

    @property
    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/dashboard", self._on_page),
            web.get("/dashboard/page/{file}", self._on_file),
            web.get("/dashboard/state", self._on_state),
            web.get("/dashboard/caches", self._on_caches),
            web.get("/dashboard/receipt", self._on_receipt),
            web.post("/dashboard/what-if", self._on_what_if),
        ]

    async def _on_page(self, request: web.Request) -> web.Response:
        return self._file(request, "index.html")

    async def _on_file(self, request: web.Request) -> web.Response:
        return self._file(request, request.match_info["file"])

    def _file(self, request: web.Request, name: str) -> web.Response:
        found = self._files.file(name, request.headers.get(hdrs.IF_NONE_MATCH))
        if found is None:
            raise web.HTTPNotFound
        return web.Response(status=found.status, body=found.body or None, headers=found.headers)

    async def _on_state(self, request: web.Request) -> web.Response:
        return json_response(await self._data.state(request.query, current_caller().roles))

    async def _on_caches(self, request: web.Request) -> web.Response:
        return json_response(await self._data.caches())

    async def _on_receipt(self, request: web.Request) -> web.Response:
        status, told = await self._data.receipt(request.query)
        return json_response(told, status)

    async def _on_what_if(self, request: web.Request) -> web.Response:
        status, told = await self._data.what_if(await request.read())
        return json_response(told, status)
