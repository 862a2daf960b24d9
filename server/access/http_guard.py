"""Access to HTTP routes: roles, the admin address, and web pages kept out.

A browser sends requests for any page that is open in it, also to loopback. Such a request is known
by an Origin that is not ours; one whose page's name was made to point at us (DNS rebinding) by a
Host that is no address and no name of ours.
"""

import socket
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, NoReturn
from urllib.parse import urlsplit

from ...base.account import network_of, set_account
from ...base.request_record import current_record
from ...transport.http1 import Asked, HttpError
from .access import Access
from .allowed_origins import AllowedOrigins
from .callers import ANONYMOUS, AccessError, Caller, set_caller
from .loopback import is_everywhere, is_loopback, parse_ip
from .roles import CLOSED, RULES

JSON = "application/json"
_READING = ("GET", "HEAD")
_METRICS = "GET /metrics"
MOST_ALIKE = 256
_API_KEY = "x-api-key"
"""Where Anthropic's clients have their token."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""What a web page can send to another site without asking it first."""


class AdminAddress(NamedTuple):
    """Where admin routes are served: a host to listen on, and a port once that is known."""

    host: str
    port: int

    def is_reached_by(self, host: str, port: int) -> bool:
        """Whether a connection to this address of ours came in there."""
        if port != self.port:
            return False
        ours, theirs = parse_ip(self.host), parse_ip(host)
        if ours is None:  # a name: localhost, or one that is distinguished by its port
            return self.host != "localhost" or (theirs is not None and theirs.is_loopback)
        everywhere = is_everywhere(self.host)
        return everywhere or ours == theirs or is_loopback(self.host) and is_loopback(host)


class PageCheck:
    """Refuses what a web page of others sent: AccessError, counted by its reason. Of the names of
    hosts addresses are ours, localhost, this machine's own and those given."""

    def __init__(self, access: Access, names: Iterable[str] = ()) -> None:
        own = (socket.gethostname(), *names)
        self._access = access
        self._names = {name.lower() for name in own if name}

    def check_origin(
        self, origin: str | None, scheme: str, host: str | None, *, proxied: bool = False
    ) -> None:
        """`host` is the header that names the address asked. `proxied`: TLS may have ended before
        us, at whatever has the page's name."""
        if origin is None or is_own_origin(origin, scheme, host or ""):
            return
        if not (proxied and is_own_origin(origin, "https", host or "")):
            self._refuse("origin", "a web page of another origin may not ask this router")

    def check_host(self, host: str | None) -> None:
        """`host` is the header."""
        if not self.is_ours(host):
            text = "the Host is no address or name of this router: see --allowed-host"
            self._refuse("host", text)

    def is_ours(self, host: str | None) -> bool:
        name, always = _name_in(host or "")
        return always or name in self._names

    def _refuse(self, reason: str, text: str) -> None:
        self._access.refused[reason] += 1
        raise AccessError(text, reason=reason, authenticated=True)


class HttpGuard:
    """The access check of an HTTP server: HttpError for a request that is refused, which is counted
    by its reason.

    401 or 403 for want of a right, 403 for a web page's request or an admin route elsewhere than at
    `admin` (None: nowhere), 415 where an admin route is sent anything but JSON.
    """

    def __init__(
        self,
        access: Access,
        allowed_hosts: Iterable[str] = (),
        origins: AllowedOrigins | None = None,
    ) -> None:
        self._access = access
        self.origins = origins or AllowedOrigins()
        self._pages = PageCheck(access, allowed_hosts)
        self.admin: AdminAddress | None = None
        self._port_for_all = 0
        self._let_in: set[tuple[object, ...]] = set()
        """anonymous calls by all that their admission depends on: most are like one before"""

    def serves(self, host: str, port: int) -> None:
        """The address of its listener. One on all addresses is reached by others, also where a
        connection came over loopback: from a proxy beside it."""
        self._port_for_all = port if is_everywhere(host) else 0
        self._let_in.clear()

    def admit(self, asked: Asked) -> Caller:
        """Who calls; from now on this task serves a call of theirs."""
        try:
            caller = self._admit(asked)
        except AccessError as error:
            set_caller(ANONYMOUS)  # the same task may have served another one
            if error.authenticated:
                raise HttpError(403, str(error)) from None
            raise HttpError(401, str(error), {"www-authenticate": "Bearer"}) from None
        set_caller(caller)
        if caller.name and (record := current_record()) is not None:
            record.caller = caller.name
        set_account(caller.name or network_of((asked.scope["client"] or ("",))[0]))
        return caller

    def _admit(self, asked: Asked) -> Caller:
        headers, access = asked.headers, self._access
        scope, named = asked.scope, headers.get("host")
        alike = asked.route, named, scope["server"]
        if access.open and alike in self._let_in and "origin" not in headers:
            return ANONYMOUS
        rule = RULES.get(asked.route, CLOSED)
        host, port = scope["server"] or ("", 0)
        private = access.open and is_loopback(host) and port != self._port_for_all
        strict = rule.admin_listener or private
        origin = headers.get("origin")
        if origin is not None and not self.origins.allow(asked.route, origin):
            self._pages.check_origin(origin, scope["scheme"], named, proxied=not strict)
        if rule.open:
            return access.admit(rule, None)
        token = None if access.open else self._authorization(asked.headers)
        caller = access.admit(rule, token, asked.names)
        if rule.admin_listener:
            self._check_admin(asked, host, port)
        # Metrics are scraped by whatever name we have there, and change nothing.
        if strict and asked.route != _METRICS:
            self._pages.check_host(named)
        if rule.admin_listener and scope["method"] not in _READING:
            self._check_body(asked)
        if access.open and origin is None and not rule.admin_listener:
            if len(self._let_in) < MOST_ALIKE and len(named or "") < MOST_ALIKE:
                self._let_in.add(alike)
        return caller

    def _check_admin(self, asked: Asked, host: str, port: int) -> None:
        if self.admin is None:
            text = "needs --auth-tokens or --tls-client-ca where not only this machine calls"
            self._refuse("listener", 403, f"{asked.scope['path']} {text}")
        elif not self.admin.is_reached_by(host, port):
            text = "this is served on the admin listener alone: see --admin-host and --admin-port"
            self._refuse("listener", 403, text)

    def _check_body(self, asked: Asked) -> None:
        headers = asked.headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        length = headers.get("content-length", "0")
        has_body = length.strip("0") != "" or "transfer-encoding" in headers
        if kind in _FORMS or (has_body and kind != JSON):
            self._refuse("content_type", 415, f"the Content-Type must be {JSON}")

    def _authorization(self, headers: Mapping[str, str]) -> str | None:
        """The authorization header, or else the token in x-api-key; each came once at most, and
        both of them only with one token."""
        shown, key = headers.get("authorization"), headers.get(_API_KEY)
        if shown is None:
            return None if key is None else f"Bearer {key}"
        if key and shown.partition(" ")[2].strip() != key.strip():
            self._refuse("token", 400, f"authorization and {_API_KEY} show different tokens")
        return shown

    def _refuse(self, reason: str, status: int, text: str) -> NoReturn:
        self._access.refused[reason] += 1
        raise HttpError(status, text)


@lru_cache(256)  # a client has the same one in all of its requests
def _name_in(host: str) -> tuple[str, bool]:
    """The name in a Host header, empty if it has none; whether no other host can have it."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return "", False
    name = name.rstrip(".").lower()
    loopback = name == "localhost" or name.endswith(".localhost")
    return name, loopback or parse_ip(name) is not None


def is_own_origin(origin: str, scheme: str, host: str) -> bool:
    """Whether a page of this origin was served at the address it now sends a request to. The
    scheme's own port may be left out."""
    own = f":{_DEFAULT_PORTS[scheme]}"
    name = origin.lower().removeprefix(f"{scheme}://")
    return name != origin.lower() and name.removesuffix(own) == host.lower().removesuffix(own)
