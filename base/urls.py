"""URLs of servers: the address of NATS taken apart, and credentials made unreadable for everything
that people or other programs get to see. Settings keep the URL that connects.
"""

import re
from string import ascii_letters, digits
from urllib.parse import SplitResult, urlsplit

from .errors import ConfigError

DEFAULT_NATS_URL = "nats://127.0.0.1:4222"
HIDDEN = "***"
WILDCARDS = ("", "0.0.0.0", "::", "[::]", "*")

_SCHEME_CHARACTERS = frozenset(f"{ascii_letters}{digits}+.-")
# A list of URLs is cut at commas that a scheme follows.
_URL_END = re.compile(r"\s|,(?=[A-Za-z][A-Za-z0-9+.\-]*://)")
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


def joined(host: str, port: int | str) -> str:
    """HOST:PORT, an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def user_of(url: str) -> str:
    """The user that an address names; empty if it names none."""
    return _split(url).username or ""


def redact_url(url: str) -> str:
    """A URL, with or without its scheme, or several with commas, without any credentials.

    A password is hidden and its user stays; a user alone may be a token, and is hidden.
    """
    return ",".join(_redact_one(part) for part in _NEXT_URL.split(url))


def redact_text(text: str) -> str:
    """Any text, such as a log line or an error, without the credentials of the URLs in it.

    Hidden is what stands between a scheme and the last @ of the run of characters: a password may
    hold almost anything, so too much is hidden rather than too little. Takes time in proportion to
    the text, whatever a peer has written there: no pattern is tried anew from each place.
    """
    if "@" not in text or "://" not in text:
        return text
    parts: list[str] = []
    done = end = 0
    last_at = -1
    found = text.find("://")
    while found >= 0:
        begin = found + 3
        if begin > end:  # of another run of characters than the one before
            match = _URL_END.search(text, begin)
            end = match.start() if match is not None else len(text)
            last_at = text.rfind("@", begin, end)
        if last_at < begin:
            found = text.find("://", end)
        elif not _follows_scheme(text, found):
            found = text.find("://", begin)
        else:
            parts += text[done:begin], _hidden(text[begin:last_at])
            done = last_at
            found = text.find("://", end)
    return "".join([*parts, text[done:]])


def _follows_scheme(text: str, end: int) -> bool:
    while end > 0 and text[end - 1] in _SCHEME_CHARACTERS:
        end -= 1
        if text[end].isalpha():
            return True
    return False


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
