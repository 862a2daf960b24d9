"""The dashboard's page and its data as answers to HTTP requests, whatever serves them."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...base.errors import UNREADABLE, CapacityError, RouterError
from ..access import Role
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
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
Health = Callable[[], tuple[bool, dict[str, Any]]]


class PageFile(NamedTuple):
    """A file of the page; an empty body goes with status 304."""

    status: int
    body: bytes
    headers: dict[str, str]


class _WhatIf(msgspec.Struct, forbid_unknown_fields=True):
    text: str | None = None
    token_ids: list[int] = []
    lora_name: str | None = None
    cache_namespace: str | None = None


class PageFiles:
    """The page is for every caller that gets here: it has no data in it."""

    def __init__(self) -> None:
        self._files = {path.name: _read(path) for path in PAGE.iterdir() if path.suffix in TYPES}

    def file(self, name: str, known_tag: str | None) -> PageFile | None:
        """One of them, unless its reader has it already; None if there is none of this name."""
        if name not in self._files:
            return None
        body, tag, content_type = self._files[name]
        headers = {**HEADERS, "etag": tag}
        if known_tag == tag:
            return PageFile(304, b"", headers)
        return PageFile(200, body, {**headers, "content-type": content_type})


class PageData:
    """What the page reads of one dashboard, as (status, JSON). Its server checks roles."""

    def __init__(self, dashboard: Dashboard, reader: RequestReader, health: Health) -> None:
        self._dashboard = dashboard
        self._reader = reader
        self._health = health

    async def state(
        self, asked: Mapping[str, str], roles: frozenset[Role], *, changes: bool = True
    ) -> dict[str, Any]:
        """What is new. `asked` is the query; `changes`: workers can be changed from here."""
        known = Known(*(read_count(asked.get(field, "")) for field in Known._fields))
        ready, health = self._health()
        health = {"ready": ready, **health}
        shown = await self._dashboard.state(known, asked.get("process", ""), health)
        shown["may"] = {
            "ask": bool(roles & {Role.ADMIN, Role.SELECTOR}),
            "change": changes and Role.ADMIN in roles,
        }
        return shown

    async def caches(self) -> dict[str, Any]:
        return self._dashboard.caches()

    async def receipt(self, asked: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        receipt = await self._dashboard.receipt(asked.get("request_id", ""))
        if receipt is None:
            return 404, {"error": "there is no receipt of this request any more"}
        return 200, receipt

    async def what_if(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            return 200, await self._what_if(body)
        except UNREADABLE as error:
            return 400, {"error": f"bad body: {error}"}
        except CapacityError as error:
            return 429, {"error": str(error)}
        except RouterError as error:
            return 400, {"error": str(error)}

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


def read_count(text: str, otherwise: int = 0) -> int:
    """A number in a query; `otherwise` if it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else otherwise
