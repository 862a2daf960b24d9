"""A loop whose time a test moves, and which runs its timers as late as the test has it look."""

from collections.abc import Callable
from typing import Any


class LateLoop:
    """What a timer needs of a loop."""

    class Handle:
        def __init__(self, due: float, callback: Callable[[], object]) -> None:
            self.due, self.callback = due, callback
            self.cancelled = False

        def cancel(self) -> None:
            self.cancelled = True

    def __init__(self) -> None:
        self.now = 100.0
        self.handles: list[Any] = []

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, callback: Callable[[], object]) -> Any:
        self.handles.append(self.Handle(due, callback))
        return self.handles[-1]

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Any:
        return self.call_at(self.now + seconds, callback)

    def look(self, seconds: float) -> None:
        """So much time passes, and then what is due is called."""
        self.now += seconds
        for handle in [each for each in self.handles if each.due <= self.now]:
            self.handles.remove(handle)
            if not handle.cancelled:
                handle.callback()
