"""AllowedOrigins: web pages of other origins whose scripts may have requests answered (CORS).

No answer allows credentials, so a page sends what its script knows: a token, if one is needed.
"""

import re
from collections.abc import Mapping, Sequence

from ...base.errors import ConfigError
from .roles import FRONTEND_RULES

ANY = "*"
_ORIGIN = re.compile(r"https?://[\w.-]+(:\d{1,5})?|https?://\[[0-9a-fA-F:.]+\](:\d{1,5})?")
_NAMES = re.compile(r"[\w-]+( ?, ?[\w-]+)*")
_MOST_NAMES = 2048  # characters
_ANSWER = {"access-control-expose-headers": "x-request-id, retry-after"}
_KEPT_S = 600
NOTHING: Mapping[str, str] = {}


class AllowedOrigins:
    """Of the routes by which clients have requests answered; of no other route."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        """ConfigError if one is no origin."""
        for origin in origins:
            if origin != ANY and not _ORIGIN.fullmatch(origin):
                text = f"{origin!r} is neither SCHEME://HOST[:PORT] nor {ANY}"
                raise ConfigError(text, key="allowed_origins")
        self._any = ANY in origins
        self._origins = frozenset(map(str.lower, origins))

    def allow(self, route: str, origin: str | None) -> bool:
        """Whether a page of this origin may use the route."""
        return origin is not None and route in _ROUTES and self._knows(origin)

    def headers(self, route: str, origin: str | None) -> Mapping[str, str]:
        """Headers of the answer by which a browser lets the page read it; none if it may not."""
        if not self._origins or route not in _ROUTES:
            return NOTHING
        if self._any:
            return {"access-control-allow-origin": ANY, **_ANSWER}
        if origin is None or not self._knows(origin):
            return {"vary": "Origin"}
        return {"access-control-allow-origin": origin, "vary": "Origin", **_ANSWER}

    def preflight(self, route: str, asked: Mapping[str, str]) -> Mapping[str, str] | None:
        """Headers of the answer to a browser that asks whether a page may use the route; None: it
        may not."""
        origin = asked.get("origin")
        if not self.allow(route, origin):
            return None
        names = asked.get("access-control-request-headers", "")
        known = len(names) <= _MOST_NAMES and _NAMES.fullmatch(names) is not None
        allowed = {
            **self.headers(route, origin),
            "access-control-allow-methods": route.partition(" ")[0],
            "access-control-allow-headers": names if known else "authorization, content-type",
            "access-control-max-age": str(_KEPT_S),
        }
        if asked.get("access-control-request-private-network") == "true":
            allowed["access-control-allow-private-network"] = "true"
        return allowed

    def _knows(self, origin: str) -> bool:
        return self._any or origin.lower() in self._origins


_ROUTES = FRONTEND_RULES.keys() - {"GET /pools"}
