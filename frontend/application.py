"""OpenAI's HTTP API as an ASGI application: routes, who may call them, and errors."""

import itertools
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import structlog

from ..server.access import Access, Caller, PageCheck, rule_of, set_account
from .asgi import (
    Client,
    ClientLeftError,
    Receive,
    Scope,
    Send,
    headers_of,
    read_body,
    send_json,
    send_whole,
)
from .openai import BAD_BODY, ApiError, api_error, bad_body

_REQUEST_ID = re.compile(r"[\w.:/-]{1,128}")

log = structlog.get_logger(__name__)


class HttpCall(NamedTuple):
    """One request, and how to answer it."""

    caller: Caller
    path: str
    headers: dict[str, str]
    body: bytes
    request_id: str
    send: Send
    client: Client
    query: bytes = b""
    """what stands behind the path's question mark"""
    ids: npt.NDArray[np.uint32] | None = None
    """token ids of its prompt, where they were taken out of the body"""

    @property
    def told(self) -> dict[str, str]:
        """Headers of every answer."""
        return {"x-request-id": self.request_id}


Handler = Callable[[HttpCall], Awaitable[None]]


class Application:
    """Answers the routes that it is given; everything else is 404, in OpenAI's shape."""

    def __init__(
        self,
        routes: dict[str, Handler],
        *,
        access: Access,
        pages: PageCheck,
        max_body_bytes: int,
        admin: bool = False,
    ) -> None:
        """`routes`: handlers by method and path ("GET /v1/models"); of GET, one may be for all
        paths that begin so ("GET /v1/models/{id}"). `admin`: whether those are served, too, that
        change or reveal things."""
        self._routes = routes
        self._below = {
            route.partition(" ")[2].partition("{")[0]: route for route in routes if "{" in route
        }
        self._paths = {route.partition(" ")[2] for route in routes}
        self._access = access
        self._pages = pages
        self._max_body_bytes, self._admin = max_body_bytes, admin
        self._ids = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count())

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        client: Client,
        names: tuple[str, ...] = (),
    ) -> None:
        """`names` are those of the certificate that the client showed."""
        if scope["type"] != "http":
            return
        headers = headers_of(scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else next(self._ids)
        told = {"x-request-id": request_id}
        try:
            handler, caller = self._admit(scope, headers, names)
            set_account(caller.name or (scope.get("client") or ("",))[0])
            body = await read_body(receive, self._max_body_bytes)
            query = scope.get("query_string", b"")
            call = HttpCall(caller, scope["path"], headers, body, request_id, send, client, query)
            await handler(call)
        except ClientLeftError:
            return
        except Exception as error:
            found = bad_body(error) if isinstance(error, BAD_BODY) else api_error(error)
            if found.status == 500:
                log.error("request failed", request_id=request_id, exc_info=error)
            body = msgspec.json.encode(found.body)
            if found.status == 413:  # the rest of the body is not read
                told["connection"] = "close"
            await send_whole(send, found.status, body, {**found.headers, **told})

    def _admit(
        self, scope: Scope, headers: dict[str, str], names: tuple[str, ...]
    ) -> tuple[Handler, Caller]:
        method, path = scope["method"], scope["path"]
        handler, route = self._routes.get(f"{method} {path}"), f"{method} {path}"
        if handler is None and method == "GET":
            for prefix, below in self._below.items():
                if path.startswith(prefix):
                    route, handler = below, self._routes[below]
        if handler is None:
            if path in self._paths:
                raise ApiError(405, f"{path} does not take {method}")
            raise ApiError(404, f"there is no {path} here")
        host = headers.get("host")
        self._pages.check_origin(headers.get("origin"), scope["scheme"], host)
        self._pages.check_host(host)
        rule = rule_of(route)
        if rule.admin_listener and not self._admin:
            text = (
                f"{path} needs --auth-tokens or --tls-client-ca where not only this machine calls"
            )
            raise ApiError(403, text)
        return handler, self._access.admit(rule, headers.get("authorization"), names)


async def answer_json(call: HttpCall, value: Any, *, status: int = 200) -> None:
    await send_json(call.send, value, call.told, status=status)
