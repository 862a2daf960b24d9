"""Connector: what starts and stops engines, as the planner sees it."""

from collections.abc import Mapping
from typing import Protocol

from ...base.errors import RouterError


class ConnectorError(RouterError):
    """The place where engines run gives no answer, or refuses; trying again later may help."""


class Connector(Protocol):
    """Level-triggered: `apply` says all that is wanted, again and again, and does what is missing
    of it. It never stops an engine that takes requests unless it is named in `leaving`, or chooses
    itself."""

    names_victims: bool
    """whether it stops the engines that it is named; else it, or what it asks, chooses"""

    async def start(self) -> None:
        """ConfigError where it cannot work at all."""

    async def asked(self) -> Mapping[str, int] | None:
        """How many engines of each role are asked for, starting ones among them; None: only what
        is registered is known. ConnectorError."""
        ...

    async def apply(
        self, wanted: Mapping[str, int], leaving: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Have this number of engines of each role; those named by their ids, which have no
        requests any more, are to go. Returns before engines have started. ConnectorError."""

    async def close(self) -> None:
        """Idempotent."""
