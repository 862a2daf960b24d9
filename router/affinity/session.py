"""Which session a request belongs to, by its metadata or headers."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from ...base.errors import InvalidRequestError

SESSION_ID_KEY = "x-dynamo-session-id"
SESSION_KEYS = (SESSION_ID_KEY, "x-claude-code-session-id", "thread-id", "x-session-id")
"""Request metadata that name a session; of several the first of these counts (Dynamo's order)."""
SESSION_FINAL_KEY = "x-dynamo-session-final"
"""Request metadata: true, if the session ends with this request."""
SESSION_TIMEOUT_KEY = "x-dynamo-session-timeout"
"""Request metadata: seconds without a request after which the session is over, if that is sooner
than the router's TTL."""
ALL_SESSION_KEYS = frozenset((*SESSION_KEYS, SESSION_FINAL_KEY, SESSION_TIMEOUT_KEY))
"""Those of which `read_session` makes something."""
LONGEST_ID = 256
"""Bytes."""
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class Session(NamedTuple):
    """What a request says of its session.

    `key` is the session's id, with its caller's name in front if it has one: no caller reaches
    another's sessions. `owner` is whose share of the table it takes.
    """

    key: str
    owner: str = ""
    timeout_s: float = math.inf
    final: bool = False
    """it ends with this request"""


def read_session(
    metadata: Iterable[tuple[str, str | bytes]] | None, caller: str = "", owner: str = ""
) -> Session | None:
    """The session of a call of `caller`, charged to `owner`; None if it names none.

    InvalidRequestError, naming the key, for what makes no sense.
    """
    given: dict[str, str] = {}
    for key, value in metadata or ():
        if key in ALL_SESSION_KEYS:
            given[key] = value if isinstance(value, str) else value.decode("latin-1")
    if not given:
        return None
    name = next((key for key in SESSION_KEYS if given.get(key)), None)
    if name is None:
        return None
    text = given[name]
    if len(text.encode("utf-8", "surrogatepass")) > LONGEST_ID or not text.isprintable():
        raise InvalidRequestError(f"{name} is no id of a session of at most {LONGEST_ID} bytes")
    final = given.get(SESSION_FINAL_KEY, "false").lower()
    if final not in _FLAGS:
        raise InvalidRequestError(f"{SESSION_FINAL_KEY} is neither true nor false: {final!r}")
    timeout_s = math.inf
    if SESSION_TIMEOUT_KEY in given:
        timeout_s = _seconds(given[SESSION_TIMEOUT_KEY])
    return Session(f"{caller}/{text}" if caller else text, owner, timeout_s, _FLAGS[final])


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidRequestError(f"{SESSION_TIMEOUT_KEY} is no number of seconds: {text!r}")
    return seconds
