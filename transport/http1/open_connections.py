"""OpenConnections: the HTTP connections of a server, and what they share."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...process.loop_turns import LoopTurns, NextTurn
from .limits import HttpLimits
from .observer import AnswerObserver, NoAnswerObserver


class OpenConnection(Protocol):
    """What the end of a server asks of a connection."""

    def shut_down(self) -> None:
        """Take no new request, and end after those that came."""

    def end_unanswered(self) -> None:
        """End what no task answers any more."""


@dataclass
class OpenConnections:
    """Those of a server, and the tasks that answer requests of theirs now."""

    limits: HttpLimits = field(default_factory=HttpLimits)
    on_slow: Callable[[], None] = lambda: None
    """called for each request that takes too long to come"""
    observer: AnswerObserver = field(default_factory=NoAnswerObserver)
    route_of: Callable[[Mapping[str, Any]], str] = lambda scope: ""
    """the path of a request's route"""
    open: set[OpenConnection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    turns: LoopTurns = field(default_factory=LoopTurns)
    """what is read in one turn of the event loop: addresses take turns"""
    next_turn: NextTurn = field(default_factory=NextTurn)
    are_ending: bool = False
    """a connection that is made now has one request"""


def address_of(found: Any) -> tuple[str, int] | None:
    """Host and port of what a transport calls an end of it; None: it has none."""
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) else None
