"""Where a watch of one kind of object stands: what to ask next, what the answers mean. No I/O.

A list comes in pages; then changes are watched from its version on. A watch ends often, by time
limit or because a connection broke, and goes on from the last version that was seen, which
bookmarks move forward where nothing of ours changes. When the API server has forgotten what came
after that version (410 Gone) everything is listed again.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

PAGE = 500
GONE = 410


@dataclass(frozen=True, slots=True)
class ListPage:
    """Ask for a page of the list: all of it if `limit` is 0."""

    limit: int
    token: str


@dataclass(frozen=True, slots=True)
class WatchFrom:
    """Ask for the changes after a version."""

    version: str


@dataclass(frozen=True, slots=True)
class Listed:
    """All objects there are."""

    objects: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """An object as it is now, or was when it was deleted."""

    found: Any
    deleted: bool


Request: TypeAlias = ListPage | WatchFrom
Outcome: TypeAlias = Listed | Changed


class ApiStatusError(Exception):
    """The API server says within an answer that it failed."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class ResourcePosition:
    """Ask `request` what to do, do it, and report what came of it."""

    def __init__(self) -> None:
        self._version: str | None = None
        self._objects: list[Any] = []
        self._token = ""
        self._limit = PAGE

    @property
    def request(self) -> Request:
        if self._version is None:
            return ListPage(self._limit, self._token)
        return WatchFrom(self._version)

    def on_page(self, page: Any) -> Listed | None:
        """A page of the list; the list once it is complete. ValueError if it is none."""
        metadata = page.get("metadata") if isinstance(page, dict) else None
        items = page.get("items") if isinstance(page, dict) else None
        if items is None:
            items = []
        if not isinstance(metadata, dict) or not isinstance(items, list):
            raise ValueError("the answer is not a list")
        version, token = metadata.get("resourceVersion"), metadata.get("continue") or ""
        if not isinstance(version, str) or not version or not isinstance(token, str):
            raise ValueError("a list without a version")
        self._objects += items
        self._token = token
        if token:
            return None
        listed = Listed(tuple(self._objects))
        self._objects, self._limit, self._version = [], PAGE, version
        return listed

    def on_event(self, event: Any) -> Changed | None:
        """A line of the watch. ApiStatusError if the server ends it, ValueError for no event."""
        kind = event.get("type") if isinstance(event, dict) else None
        found = event.get("object") if isinstance(event, dict) else None
        if not isinstance(found, dict):
            raise ValueError("a line of a watch is no event")
        if kind == "ERROR":
            code = found.get("code")
            raise ApiStatusError(
                code if isinstance(code, int) else 0, str(found.get("message", "no reason given"))
            )
        metadata = found.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(version, str) or not version:
            raise ValueError("an event of a watch has no version")
        self._version = version
        if kind == "BOOKMARK":
            return None
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            raise ValueError(f"a watch sent {str(kind)[:40]!r}, which is no event")
        return Changed(found, kind == "DELETED")

    def on_gone(self) -> None:
        """410: the page or the version that was asked for is not to be had any more."""
        if self._version is None:
            # The list took so long that its moment was forgotten: it is asked for in one piece.
            self._limit = 0
        self._version, self._objects, self._token = None, [], ""

    def on_malformed(self) -> None:
        """An answer could not be read: nothing is taken for granted."""
        self._version, self._objects, self._token = None, [], ""
