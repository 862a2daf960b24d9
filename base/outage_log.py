"""OutageLog: that something is away, and that it is back, each said once."""

from typing import Any


class OutageLog:
    """One line when something fails that did not, one when it is well again, none in between."""

    def __init__(self, log: Any, away: str, back: str) -> None:
        """`log` is a logger of structlog; `away` and `back` are what the lines say."""
        self._log, self._away, self._back = log, away, back
        self._failures = 0  # in a row

    def on_failed(self, **values: object) -> None:
        if not self._failures:
            self._log.warning(self._away, **values)
        self._failures += 1

    def on_well(self, **values: object) -> None:
        if self._failures:
            self._log.info(self._back, failures=self._failures, **values)
        self._failures = 0
