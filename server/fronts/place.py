"""FrontPlace: which process of several this one is, and the settings that its parent gave it."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from ...process.settings import Resolved, SettingsSource, with_value

PLACE_NAME = "_DYNAMO_ROUTER_FRONT"
"""The environment variable by which a parent gives a process its place."""
T = TypeVar("T")


class FrontPlace(msgspec.Struct, frozen=True):
    """One of `count` processes that serve the same ports; `folder` has their sockets."""

    number: int
    count: int
    folder: str
    settings: dict[str, Any] = {}
    """settings, by their keys, that all have from their parent or that are this process' own"""
    workers: list[str] = []
    """URLs of workers beside those of the configuration"""

    @classmethod
    def take(cls) -> Self | None:
        """The place that the parent gave this process; None where none did. Children of this
        process do not see it."""
        given = os.environ.pop(PLACE_NAME, None)
        return None if given is None else msgspec.json.decode(given, type=cls)

    @property
    def environment(self) -> dict[str, str]:
        """What gives a child this place."""
        return {PLACE_NAME: msgspec.json.encode(self).decode()}

    def socket_of(self, number: int) -> str:
        """Where the process of this number answers its siblings."""
        return str(Path(self.folder) / f"front-{number}.sock")

    def applied_to(self, config: T) -> T:
        """A configuration with this place's settings in it."""
        whole: Any = config
        if self.workers:
            whole = replace(whole, workers=(*whole.workers, *self.workers))
        for key, value in self.settings.items():
            whole = with_value(whole, key, value)
        return whole  # type: ignore[no-any-return]


class PlacedSettings(SettingsSource[T]):
    """A source of settings, with those of a place in all that is read from it."""

    def __init__(self, source: SettingsSource[T], place: FrontPlace) -> None:
        self._source, self._place = source, place
        self.current = self._placed(source.current)

    def read(self) -> Resolved[T]:
        return self._placed(self._source.read())

    def _placed(self, found: Resolved[T]) -> Resolved[T]:
        return replace(found, config=self._place.applied_to(found.config))
