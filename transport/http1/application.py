"""Application: requests of a server answered by its routes, once it is known who calls."""

import itertools
import re
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from .asgi import (
    Client,
    ClientLeftError,
    Receive,
    Scope,
    Send,
    headers_of,
    read_body,
    send_whole,
)
from .errors import ErrorForm, HttpError
from .routes import HttpCall, Routes, RouteTable

_REQUEST_ID = re.compile(r"[\w.:/-]{1,128}")

log = structlog.get_logger(__name__)


class Asked(NamedTuple):
    """What is known of a request before its body is read."""

    route: str
    scope: Scope
    headers: dict[str, str]
    names: tuple[str, ...]
    """in the certificate that the client showed"""


Admit = Callable[[Asked], Any]
"""Who calls; an error, if they may not."""


class Application:
    """Answers by its routes; errors get the server's form."""

    def __init__(
        self,
        routes: Routes,
        form: ErrorForm,
        *,
        admit: Admit = lambda asked: None,
        max_body_bytes: int,
        on_long_body: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_long_body` is called for each request with more than `max_body_bytes`."""
        self._routes, self._form, self._admit = RouteTable(routes), form, admit
        self._max_body_bytes, self._on_long_body = max_body_bytes, on_long_body
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
        headers = headers_of(scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else next(self._ids)
        path = scope["path"]
        try:
            route = self._routes.find(scope["method"], path, scope["raw_path"].decode("ascii"))
            caller = self._admit(Asked(route.name, scope, headers, names))
            body = await read_body(receive, self._max_body_bytes)
            query = scope["query_string"]
            call = HttpCall(
                caller, path, headers, body, request_id, send, client, query, route.values
            )
            await route.handler(call)
        except ClientLeftError:
            return
        except Exception as error:
            answer = self._form(error)
            told = {**answer.headers, "x-request-id": request_id}
            if answer.status == 500:
                log.error("request failed", path=path, request_id=request_id, exc_info=error)
            if isinstance(error, HttpError) and error.status == 413:
                self._on_long_body()
                told["connection"] = "close"  # the rest of the body is not read
            await send_whole(send, answer.status, answer.body, told)
