"""URLs of servers: the address of NATS taken apart, and credentials made unreadable for everything
that people or other programs get to see. Settings keep the URL that connects.
"""

import re
from urllib.parse import SplitResult, urlsplit

from .errors import ConfigError

DEFAULT_NATS_URL = "nats://127.0.0.1:4222"
HIDDEN = "***"
WILDCARDS = ("", "0.0.0.0", "::", "[::]", "*")

# A scheme and what stands between it and the last @ of the run of characters. A password may hold
# almost anything, so too much is hidden rather than too little. A list of URLs is cut at commas
# that a scheme follows.
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*://)((?:(?!,[A-Za-z][A-Za-z0-9+.\-]*://)\S)*)@")
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.\-]*://")
_PORT = re.compile(r"\d+(?:[/?#,]|$)")
_NEXT_URL = re.compile(r",(?=\s*[A-Za-z][A-Za-z0-9+.\-]*://)")


def split_nats_url(url: str) -> tuple[str, int]:
    """Host and port of a `nats://` or `tls://` address; ConfigError if it is none."""
    try:
        if not is_printable(url):
            raise ValueError
        parts = _split(url)
        fits = parts.scheme in ("nats", "tls") and not parts.path.strip("/")
        if fits and parts.hostname and not parts.query and not parts.fragment:
            return parts.hostname, parts.port or 4222
    except ValueError:
        pass  # its text may hold what stands where the port is expected: a password
    raise ConfigError(
        f"{redact_url(url)!r} is not the address of a NATS server: expected nats://HOST:PORT",
        key="nats",
    )


def is_printable(url: str) -> bool:
    """Whether there is no space or control character in it, some of which a parser passes over."""
    return url.isprintable() and " " not in url


def user_of(url: str) -> str:
    """The user that an address names; empty if it names none."""
    return _split(url).username or ""


def redact_url(url: str) -> str:
    """A URL, with or without its scheme, or several with commas, without any credentials.

    A password is hidden and its user stays; a user alone may be a token, and is hidden.
    """
    return ",".join(_redact_one(part) for part in _NEXT_URL.split(url))


def redact_text(text: str) -> str:
    """Any text, such as a log line or an error, without the credentials of the URLs in it."""
    if "@" not in text or "://" not in text:
        return text
    return _USERINFO.sub(lambda found: f"{found[1]}{_hidden(found[2])}@", text)


def _redact_one(url: str) -> str:
    scheme = found[0] if (found := _SCHEME.match(url)) else ""
    userinfo, at, host = url.removeprefix(scheme).rpartition("@")
    if at:
        return f"{scheme}{_hidden(userinfo)}@{host}"
    name, colon, port = host.partition(":")
    if colon and not host.startswith("[") and not _PORT.match(port):
        return f"{scheme}{name}:{HIDDEN}"  # a password whose host was forgotten
    return url


def _hidden(userinfo: str) -> str:
    user, colon, _ = userinfo.partition(":")
    return f"{user}:{HIDDEN}" if colon else HIDDEN


def _split(url: str) -> SplitResult:
    return urlsplit(url if "://" in url else f"nats://{url}")
