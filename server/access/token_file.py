"""The file of callers: tokens or certificates, names and roles. TOML, or JSON lines.

[[caller]]
name = "frontend"
token = "..."                  # or token_sha256, or certificate
roles = ["client", "selector"]
"""

import hashlib
import hmac
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from ...base.errors import ConfigError
from ...process.settings import nearest
from ...transport.security import read_file
from .callers import Caller
from .roles import Role

KEY = "auth_tokens"
MIN_TOKEN = 16
"""A shorter token could be guessed."""
MAX_TOKEN = 4096
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*\Z")  # what an Authorization header can carry: RFC 6750
_ENTRY = re.compile(r"\s*\[\[\s*caller\s*\]\]")
_WAYS = ("token", "token_sha256", "certificate")
_KEYS = ("name", "roles", *_WAYS)


class TokenTable:
    """The callers of a file, found by what they show."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, tuple[bytes, Caller]] = {}
        self._by_certificate: dict[str, Caller] = {}

    def __len__(self) -> int:
        return len(self._by_digest) + len(self._by_certificate)

    def by_token(self, token: str) -> Caller | None:
        """Whose token it is. Digests are compared, in constant time, so that how long it takes says
        nothing of how near a guess was."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        known, caller = self._by_digest.get(digest[:8], (b"", None))
        return caller if hmac.compare_digest(known, digest) else None

    def by_certificate(self, names: tuple[str, ...]) -> Caller | None:
        """Whose certificate carries one of these names."""
        for name in names:
            if (caller := self._by_certificate.get(name)) is not None:
                return caller
        return None

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add a caller. ValueError, without a secret in it, if the entry is not valid."""
        for key in entry:
            if key not in _KEYS:
                raise ValueError(f"unknown key {key!r}{nearest(key, _KEYS)}")
        caller = Caller(_read_name(entry.get("name")), _read_roles(entry.get("roles")))
        given = [way for way in _WAYS if way in entry]
        if len(given) != 1:
            raise ValueError(f"one of {', '.join(_WAYS)} must be there")
        shown = entry[given[0]]
        if not isinstance(shown, str) or not shown:
            raise ValueError(f"{given[0]} must be a text that is not empty")
        if given[0] == "certificate":
            if self._by_certificate.setdefault(shown, caller) is not caller:
                raise ValueError(f"certificate {shown!r} is there twice: give each caller its own")
            return
        digest = _digest_of(shown) if given[0] == "token" else _read_digest(shown)
        if self._by_digest.setdefault(digest[:8], (digest, caller))[1] is not caller:
            raise ValueError("the token is there twice: give each caller its own")


def read_tokens(path: str) -> TokenTable:
    """Read a file of callers. ConfigError, naming the line, if it is not valid."""
    try:
        text = read_file(path, KEY).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{KEY}: {path} is not UTF-8", key=KEY) from None
    table = TokenTable()
    entries = _json_lines if text.lstrip().startswith("{") else _toml
    try:
        for line, entry in entries(text):
            try:
                table.add(entry)
            except ValueError as error:
                raise _LineError(line, str(error)) from None
    except _LineError as error:
        raise ConfigError(f"{KEY}: {path}, line {error.line}: {error.text}", key=KEY) from None
    if not len(table):
        raise ConfigError(f"{KEY}: {path} names no caller", key=KEY)
    return table


class _LineError(Exception):
    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line, self.text = line, text


def _toml(text: str) -> list[tuple[int, dict[str, Any]]]:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error)
        found = re.search(r"line (\d+)", reason)
        line = int(found[1]) if found else text.count("\n") + 1
        raise _LineError(line, "it is not TOML") from None  # what it says may quote a token
    for key in tree:
        if key != "caller":
            starts = [number for number, row in _rows(text) if row.strip(" [").startswith(key)]
            line = starts[0] if starts else 1
            raise _LineError(line, f"unknown key {key!r}: only [[caller]] is known")
    entries = tree.get("caller", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise _LineError(1, "caller must be written [[caller]]")
    lines = [number for number, row in _rows(text) if _ENTRY.match(row)]
    if len(lines) != len(entries):  # written in one line: caller = [...]
        lines = [1] * len(entries)
    return list(zip(lines, entries, strict=True))


def _json_lines(text: str) -> list[tuple[int, dict[str, Any]]]:
    entries = []
    for number, row in _rows(text):
        if not row.strip():
            continue
        try:
            entry = json.loads(row)
        except ValueError:
            raise _LineError(number, "it is not JSON") from None
        if not isinstance(entry, dict):
            raise _LineError(number, "it is no JSON object")
        entries.append((number, entry))
    return entries


def _rows(text: str) -> list[tuple[int, str]]:
    return list(enumerate(text.split("\n"), 1))


def _read_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise ValueError("name must be 1 to 64 letters, digits, dots, dashes and underscores")
    return name


def _read_roles(roles: Any) -> frozenset[Role]:
    known = ", ".join(Role)
    if not isinstance(roles, list) or not roles:
        raise ValueError(f"roles must be a list of {known}")
    for role in roles:
        if role not in list(Role):
            raise ValueError(f"{role!r} is no role: they are {known}")
    return frozenset(map(Role, roles))


def _digest_of(token: str) -> bytes:
    if len(token) < MIN_TOKEN:
        raise ValueError(f"token is shorter than {MIN_TOKEN} characters")
    if len(token) > MAX_TOKEN or not _TOKEN.match(token):
        raise ValueError(
            f"token must be at most {MAX_TOKEN} letters, digits and - . _ ~ + /, as in a header"
        )
    return hashlib.sha256(token.encode()).digest()


def _read_digest(text: str) -> bytes:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ValueError("token_sha256 must be 64 hexadecimal digits")
    return bytes.fromhex(text)
