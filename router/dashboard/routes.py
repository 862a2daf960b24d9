"""The dashboard's routes for the HTTP server, which guards them: its page, its data in JSON."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import hdrs, web

from ...runtime.errors import RouterError
from ...runtime.http_site import json_response
from ..access import Role, current_caller
from ..dispatch import RequestReader
from .dashboard import Dashboard, Known

PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from anywhere else, nothing inline, no frame around it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
Health = Callable[[], tuple[bool, dict[str, Any]]]


class _WhatIf(msgspec.Struct, forbid_unknown_fields=True):
    text: str | None = None
    token_ids: list[int] = []
    lora_name: str | None = None
    cache_namespace: str | None = None


class DashboardRoutes:
    """The page is for everybody who gets here: it has nothing in it. Its data needs a role."""

    def __init__(self, dashboard: Dashboard, reader: RequestReader, health: Health) -> None:
        self._dashboard = dashboard
        self._reader = reader
        self._health = health
        self._files = {path.name: _read(path) for path in PAGE.iterdir() if path.suffix in TYPES}

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
        if name not in self._files:
            raise web.HTTPNotFound
        body, tag, content_type = self._files[name]
        headers = {**HEADERS, hdrs.ETAG: tag}
        if request.headers.get(hdrs.IF_NONE_MATCH) == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, headers={**headers, hdrs.CONTENT_TYPE: content_type})

    async def _on_state(self, request: web.Request) -> web.Response:
        asked = request.query
        known = Known(*(_count(asked.get(field, "")) for field in Known._fields))
        ready, health = self._health()
        health = {"ready": ready, **health}
        told = await self._dashboard.state(known, asked.get("process", ""), health)
        roles = current_caller().roles
        told["may"] = {
            "ask": bool(roles & {Role.ADMIN, Role.SELECTOR}),
            "change": Role.ADMIN in roles,
        }
        return json_response(told)

    async def _on_caches(self, request: web.Request) -> web.Response:
        return json_response(self._dashboard.caches())

    async def _on_receipt(self, request: web.Request) -> web.Response:
        told = await self._dashboard.receipt(request.query.get("request_id", ""))
        if told is None:
            return json_response({"error": "there is no receipt of this request any more"}, 404)
        return json_response(told)

    async def _on_what_if(self, request: web.Request) -> web.Response:
        try:
            return json_response(await self._what_if(await request.read()))
        except msgspec.DecodeError as error:
            return json_response({"error": f"bad body: {error}"}, 400)
        except RouterError as error:
            return json_response({"error": str(error)}, 400)

    async def _what_if(self, body: bytes) -> dict[str, Any]:
        dashboard, reader = self._dashboard, self._reader
        token_ids: Any
        token_ids, rest = await reader.json_tokens(body, b"token_ids")
        asked = msgspec.json.decode(rest, type=_WhatIf)
        if asked.text is not None:
            if dashboard.tokenize is None:
                raise RouterError("there is no tokenizer here: give token ids")
            token_ids = await dashboard.tokenize(asked.text)
        prompt = await reader.prompt(token_ids, asked.lora_name, asked.cache_namespace)
        return await dashboard.what_if(prompt)


def _read(path: Path) -> tuple[bytes, str, str]:
    body = path.read_bytes()
    return body, f'"{hashlib.sha256(body).hexdigest()[:16]}"', TYPES[path.suffix]


def _count(text: str) -> int:
    """A number in a query; 0 if it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else 0
