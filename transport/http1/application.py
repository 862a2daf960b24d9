"""Application: requests of a server answered by its routes, once it is known who calls.

HttpCall is what a handler is given; RouteTable finds the handler of a method and a path.
"""

import itertools
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

import msgspec
import structlog

from ...base.account import current_account
from ...base.limit_hits import LimitHits
from ...base.request_record import CLIENT_LEFT, RequestRecord, current_record
from ...base.shared_bound import SharedBound
from ...process.off_loop import OffLoop
from .asgi import (
    Client,
    ClientLeftError,
    Receive,
    Scope,
    Send,
    check_length,
    headers_of,
    read_body,
    send_json,
    send_whole,
)
from .errors import ErrorForm, HttpError
from .packed_body import coding_of, unpacked

UNKNOWN_ROUTE = "unknown"
"""Stands for the route of each path that has none."""
_NOTHING: Mapping[str, str] = MappingProxyType({})
_REQUEST_ID = re.compile(r"[\w.:/-]{1,128}")

log = structlog.get_logger(__name__)


class HttpCall(msgspec.Struct, frozen=True):
    """One request, and how to answer it."""

    caller: Any
    """who calls, as the server's access check has it"""
    path: str
    headers: dict[str, str]
    body: bytes
    request_id: str
    send: Send
    client: Client
    query: bytes = b""
    """what stands behind the path's question mark"""
    values: Mapping[str, str] = _NOTHING
    """of the placeholders in the route's path"""
    more_headers: Mapping[str, str] = _NOTHING
    """of every answer to it"""
    ids: Any = None
    """token ids of its prompt, an array, where they were taken out of the body"""
    items: Any = None
    """where those of a conversation are in its body, if that was looked for"""

    @property
    def record(self) -> RequestRecord:
        """Facts of it for log, metrics and spans; empty for a call that no connection made."""
        return current_record() or RequestRecord()

    @property
    def answer_headers(self) -> dict[str, str]:
        """Headers of every answer."""
        return {"x-request-id": self.request_id, **self.more_headers}

    @property
    def parameters(self) -> dict[str, str]:
        """What the query gives."""
        return dict(parse_qsl(self.query.decode("latin-1"), keep_blank_values=True))


Handler = Callable[[HttpCall], Awaitable[None]]
"""Answers a call, or raises what the server's ErrorForm makes an answer of."""
Routes = Mapping[str, Handler]
"""Handlers by method and path: "GET /workers/{id}". A placeholder is one part of the path; the
last one is all that is left of a path that no other route has. HEAD is answered as GET, a path that
ends with a slash as without."""


class Route(msgspec.Struct, frozen=True):
    """The route of a request."""

    name: str
    """as in the table"""
    path: str
    """the same without its method"""
    handler: Handler
    values: Mapping[str, str] = _NOTHING


class RouteTable:
    """Finds the route of a request."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._methods: dict[str, list[str]] = {}
        for route in routes:
            method, _, path = route.partition(" ")
            self._methods.setdefault(path, []).append(method)
        patterns = [path for path in self._methods if "{" in path]
        self._patterns = [(path, re.compile(_pattern(path, "[^/]+"))) for path in patterns]
        self._patterns += [
            (path, re.compile(_pattern(path, ".+"))) for path in patterns if path.endswith("}")
        ]
        self._found = {name: Route(name, name.partition(" ")[2], routes[name]) for name in routes}

    def find(self, method: str, path: str, raw_path: str) -> Route:
        """HttpError 404 if there is no such path, 405 if it does not take the method. `raw_path`
        is the path as it was sent: a placeholder's value may have a slash that is written %2F."""
        served = "GET" if method == "HEAD" else method
        if raw_path.endswith("/"):  # clients end paths as they like
            path, raw_path = path.rstrip("/") or "/", raw_path.rstrip("/") or "/"
        name = f"{served} {path}"
        if (found := self._found.get(name)) is not None:
            return found
        pattern, values = (path, {}) if path in self._methods else self._matching(path, raw_path)
        name = f"{served} {pattern}"
        if (handler := self._routes.get(name)) is None:
            methods = self._methods[pattern]
            heads = ["HEAD"] if "GET" in methods else []
            allowed = {"allow": ",".join(methods + heads)}
            raise HttpError(405, f"{path} does not take {method}", allowed)
        return Route(name, pattern, handler, values)

    def path_of(self, path: str, raw_path: str) -> str:
        """The path of the route, whatever method it takes; UNKNOWN_ROUTE if there is none."""
        if path in self._methods:
            return path
        forms = (pattern for pattern, form in self._patterns if form.fullmatch(raw_path))
        return next(forms, UNKNOWN_ROUTE)

    def _matching(self, path: str, raw_path: str) -> tuple[str, dict[str, str]]:
        for pattern, form in self._patterns:
            if (found := form.fullmatch(raw_path)) is not None:
                return pattern, {name: unquote(value) for name, value in found.groupdict().items()}
        raise HttpError(404, f"there is no {path} here")


def _pattern(path: str, last: str) -> str:
    """A route's path as a regular expression; `last` is that of the placeholder at its end."""
    *parts, end = re.split(r"\{(\w+)\}", path)
    if end == "" and parts:
        *parts, name = parts
        end = f"(?P<{name}>{last})"
    else:
        end = re.escape(end)
    known = [f"(?P<{part}>[^/]+)" if n % 2 else re.escape(part) for n, part in enumerate(parts)]
    return "".join(known) + end


class Asked(msgspec.Struct, frozen=True):
    """What is known of a request before its body is read."""

    route: str
    scope: Scope
    headers: dict[str, str]
    names: tuple[str, ...]
    """in the certificate that the client showed"""


Admit = Callable[[Asked], Any]
"""Who calls; an error, if they may not."""


class Origins(Protocol):
    """Web pages of other origins that may use a route."""

    def headers(self, route: str, origin: str | None) -> Mapping[str, str]:
        """What every answer says of it."""
        ...

    def preflight(self, route: str, asked: Mapping[str, str]) -> Mapping[str, str] | None:
        """The answer to a browser that asks first, by these headers; None: there is none."""
        ...


class _BodyBytes:
    """The body of one request, counted from its first bytes until the request is answered."""

    def __init__(self, bound: SharedBound, on_refused: Callable[[], None]) -> None:
        self._bound, self._on_refused = bound, on_refused
        self._caller, self._size = current_account(), 0

    def add(self, size: int) -> None:
        """`size` bytes more came; HttpError if there is no room for them."""
        refusal = self._bound.take(self._caller, size) if size else None
        if refusal is not None:
            self._on_refused()
            raise HttpError(429, f"no capacity for the request: {refusal}")
        self._size += size

    def close(self) -> None:
        """The request is answered."""
        if self._size:
            self._bound.give_back(self._caller, self._size)


class Application:
    """Answers by its routes; errors get the server's form."""

    def __init__(
        self,
        routes: Routes,
        form: ErrorForm,
        *,
        form_of: Callable[[str], ErrorForm] | None = None,
        admit: Admit = lambda asked: None,
        max_body_bytes: int,
        on_long_body: Callable[[], None] = lambda: None,
        bodies: SharedBound | None = None,
        on_refused: Callable[[], None] = lambda: None,
        off_loop: OffLoop | None = None,
        origins: Origins | None = None,
    ) -> None:
        """`form_of` has the form of errors by the path, where not all have the same.

        `on_long_body` is called for each request with more than `max_body_bytes`; `bodies`
        counts those of all requests, `on_refused` is called for each that finds no room there.
        `off_loop` joins and unpacks long bodies; without `origins` pages of others use no route."""
        self._routes, self._admit = RouteTable(routes), admit
        self._form_of = form_of or (lambda path: form)
        self._max_body_bytes, self._on_long_body = max_body_bytes, on_long_body
        self._bodies = bodies or SharedBound("bodies", sys.maxsize, 1.0, LimitHits())
        self._on_refused, self._off_loop, self._origins = on_refused, off_loop, origins
        self._ids = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count())

    def route_of(self, scope: Mapping[str, Any]) -> str:
        """The path of a request's route, or UNKNOWN_ROUTE."""
        if "path" not in scope:  # its head was not read
            return UNKNOWN_ROUTE
        return self._routes.path_of(scope["path"], scope["raw_path"].decode("ascii"))

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
        path, count, whole = scope["path"], None, True
        more_headers = {"x-request-id": request_id}
        record = current_record() or RequestRecord()
        record.request_id = request_id
        try:
            if scope["method"] == "OPTIONS":
                if (allowed := self._preflight(scope, headers)) is not None:
                    await send_whole(send, 200, b"", {**allowed, **more_headers})
                    return
            route = self._routes.find(scope["method"], path, scope["raw_path"].decode("ascii"))
            record.route = route.path
            more = _NOTHING
            if self._origins is not None:
                more = self._origins.headers(route.name, headers.get("origin"))
                more_headers.update(more)
            caller = self._admit(Asked(route.name, scope, headers, names))
            coding = coding_of(headers) if "content-encoding" in headers else ""
            most = self._max_body_bytes
            count, whole = _BodyBytes(self._bodies, self._on_refused), False
            found = client.whole_body()
            if found is None:  # a length that is too much is refused before a byte of it comes
                declared = headers.get("content-length", "").lstrip("0")
                check_length(int(declared or 0), most)
                found = await read_body(receive, most, count.add, self._off_loop)
            else:
                if len(found) > most:
                    check_length(len(found), most)
                count.add(len(found))
            body, whole = found, True
            if coding and body:
                body = await unpacked(body, coding, most, count.add, self._off_loop)
            query = scope["query_string"]
            call = HttpCall(
                caller, path, headers, body, request_id, send, client, query, route.values, more
            )
            await route.handler(call)
        except ClientLeftError:
            record.error = CLIENT_LEFT
        except Exception as error:
            answer = self._form_of(path)(error)
            record.error = str(error) if answer.foreseen else type(error).__name__
            more_headers = {**answer.headers, **more_headers}
            if not answer.foreseen:
                log.error("request failed", path=path, request_id=request_id, exc_info=error)
            elif answer.status == 500 and not record.is_logged:  # an engine's fault: no stack
                log.warning("request failed", path=path, request_id=request_id, error=str(error))
            if isinstance(error, HttpError) and error.status == 413:
                self._on_long_body()
            if not whole:
                more_headers["connection"] = "close"  # the rest of the body is not read
            await send_whole(send, answer.status, answer.body, more_headers)
        finally:
            if count is not None:
                count.close()

    def _preflight(self, scope: Scope, headers: Mapping[str, str]) -> Mapping[str, str] | None:
        """The answer to a browser that asks whether a page may send a request."""
        wanted = headers.get("access-control-request-method")
        if self._origins is None or wanted is None:
            return None
        route = self._routes.find(wanted, scope["path"], scope["raw_path"].decode("ascii"))
        return self._origins.preflight(route.name, headers)


async def answer_json(call: HttpCall, value: Any, *, status: int = 200) -> None:
    """With whatever msgspec can encode."""
    await send_json(call.send, value, call.answer_headers, status=status)


async def answer_whole(
    call: HttpCall,
    body: bytes | memoryview,
    headers: Mapping[str, str],
    *,
    status: int = 200,
    length: int | None = None,
) -> None:
    """With bytes; `headers` name their type, if it is not JSON. Or with the first of them, of an
    answer of this `length`: the others are sent by `call.send`."""
    await send_whole(call.send, status, body, {**headers, **call.answer_headers}, length)
