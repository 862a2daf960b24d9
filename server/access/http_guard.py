"""Access to HTTP routes: roles, the admin listener, and web pages kept out."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from aiohttp import hdrs, web

from .access import Access
from .callers import AccessError, set_caller
from .page_check import PageCheck, is_loopback, parse_ip
from .roles import Rule, rule_of

JSON = "application/json"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Listener(NamedTuple):
    """Where admin routes are served: a host to listen on, and a port once that is known."""

    host: str
    port: int

    def is_reached_by(self, host: str, port: int) -> bool:
        """Whether a connection to this address of ours came in by this listener."""
        if port != self.port:
            return False
        ours, theirs = parse_ip(self.host), parse_ip(host)
        if ours is None:  # a name: localhost, or one that is told apart by its port
            return self.host != "localhost" or (theirs is not None and theirs.is_loopback)
        return ours.is_unspecified or ours == theirs or is_loopback(self.host) and is_loopback(host)


class HttpGuard:
    """Decides about requests. `admin` is where admin routes are served; `refused` counts by reason.

    Its middleware answers 401 or 403 for want of a right, 403 for a web page's request or an admin
    route elsewhere, 415 where a route that changes something is sent anything but JSON.
    """

    def __init__(self, access: Access, admin: Listener, allowed_hosts: Iterable[str] = ()) -> None:
        self._access = access
        self._pages = PageCheck(access, allowed_hosts)
        self.admin = admin
        self.refused: Counter[str] = access.refused

    @property
    def middleware(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            resource = request.match_info.route.resource
            if resource is not None:  # else there is no such route, and that is the answer
                self._check(request, rule_of(f"{request.method} {resource.canonical}"))
            return await handler(request)

        return guard

    def _check(self, request: web.Request, rule: Rule) -> None:
        if rule.open:
            return
        host, port = _own_address(request)
        changes = request.method not in (hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS)
        origin, named = request.headers.get(hdrs.ORIGIN), request.headers.get(hdrs.HOST)
        try:
            self._pages.check_origin(origin, request.scheme, named)
            if rule.admin_listener and not self.admin.is_reached_by(host, port):
                where = f"{self.admin.host}:{self.admin.port}"
                self._refuse("listener", f"this is served on the admin listener alone: {where}")
            # Metrics are scraped by whatever name we have there, and change nothing.
            if (rule.admin_listener or changes or is_loopback(host)) and request.path != "/metrics":
                self._pages.check_host(named)
            if rule.admin_listener and changes:
                self._check_body(request)
            header = request.headers.getall(hdrs.AUTHORIZATION, [])
            token = header[0] if len(header) == 1 else "" if header else None
            set_caller(self._access.admit(rule, token, _certificate_names(request)))
        except AccessError as error:
            if error.authenticated:
                raise web.HTTPForbidden(text=str(error)) from None
            challenge = {hdrs.WWW_AUTHENTICATE: "Bearer"}
            raise web.HTTPUnauthorized(text=str(error), headers=challenge) from None

    def _check_body(self, request: web.Request) -> None:
        if _has_body(request) and request.content_type != JSON:
            self.refused["content_type"] += 1
            raise web.HTTPUnsupportedMediaType(text=f"the Content-Type must be {JSON}")

    def _refuse(self, reason: str, text: str) -> None:
        self.refused[reason] += 1
        raise web.HTTPForbidden(text=text)


def _own_address(request: web.Request) -> tuple[str, int]:
    """Our own address that the request came to."""
    transport = request.transport
    name = None if transport is None else transport.get_extra_info("sockname")
    return (str(name[0]), int(name[1])) if name else ("", 0)


def _has_body(request: web.Request) -> bool:
    return request.can_read_body or request.method == hdrs.METH_POST


def _certificate_names(request: web.Request) -> tuple[str, ...]:
    transport = request.transport
    return () if transport is None else certificate_names(transport.get_extra_info("peercert"))


def certificate_names(shown: Any) -> tuple[str, ...]:
    """The names in the certificate that a peer showed, as ssl gives it (None or empty if it showed
    none): its common name, then the others."""
    if not shown:
        return ()
    parts = (pair for part in shown.get("subject", ()) for pair in part)
    names = [value for key, value in parts if key == "commonName"]
    names += [value for _, value in shown.get("subjectAltName", ())]
    return tuple(dict.fromkeys(names))
