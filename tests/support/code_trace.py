"""Which Python files of the product run for one thing that it does: a request, an event."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, Self

import dynamo_router

ROOT = Path(dynamo_router.__file__).parent
_TURNS = 20
"""Turns of the event loop after an action, in which what follows from it ends."""


class Function(NamedTuple):
    """A Python function by the file that it is in, a path below the package; "" for all files that
    are not the product's."""

    file: str
    name: str


class CodeTrace:
    """Records the Python functions that run, on this thread and on each that is started while it is
    entered: enter it before the server under test is made.

    Kernels (.pyx) have no Python functions, and methods that `dataclass` and `NamedTuple` write
    belong to no file. `leave_out` are folders of the other side, such as the mock engines'.
    """

    def __init__(self, *, leave_out: tuple[str, ...] = ("engines",)) -> None:
        self._others = tuple(f"{folder}/" for folder in ("tests", *leave_out))
        self._known: dict[CodeType, Function | None] = {}
        self._calls: Counter[Function] = Counter()
        self._last: Function | None = None
        self._records = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = sys.getprofile()
        threading.setprofile(self._on_event)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        threading.setprofile(self._before)
        self._records = False

    async def calls_of(
        self,
        action: Callable[[], Awaitable[object]],
        *,
        until: Function | None = None,
        times: int = 7,
    ) -> Counter[Function]:
        """The calls of Python functions that one action makes, the fewest of so many repetitions;
        with `until` those before the first return of that function.

        Functions that did not run in every repetition are left out: what the action needs runs
        each time, while probes and timers of the background run only in some. Repeat the action
        before, so that nothing is imported, connected or cached by it for the first time.
        """
        found: Counter[Function] | None = None
        self._last = until
        for _ in range(times):
            calls = await self._record(action)
            found = calls if found is None else found & calls
        assert found is not None
        return found

    async def files_of(
        self,
        action: Callable[[], Awaitable[object]],
        *,
        until: Function | None = None,
        times: int = 7,
    ) -> frozenset[str]:
        """The product's files alone, as paths below the package."""
        calls = await self.calls_of(action, until=until, times=times)
        return frozenset(file for file, _ in calls) - {""}

    async def _record(self, action: Callable[[], Awaitable[object]]) -> Counter[Function]:
        self._calls = calls = Counter()
        sys.setprofile(self._on_event)
        self._records = True
        try:
            await action()
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        finally:
            self._records = False
            sys.setprofile(self._before)
        return calls

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        if not self._records or (event != "call" and event != "return"):
            return
        code = frame.f_code
        try:
            function = self._known[code]
        except KeyError:
            function = self._known[code] = self._function_of(code)
        if function is None:
            return
        if event == "call":
            self._calls[function] += 1
        elif function == self._last:
            self._records = False

    def _function_of(self, code: CodeType) -> Function | None:
        """None: it does not count."""
        path = Path(code.co_filename)
        if not path.is_relative_to(ROOT):
            return Function("", code.co_qualname)
        file = path.relative_to(ROOT).as_posix()
        if code.co_name == "<module>" or file.startswith(self._others):
            return None
        return Function(file, code.co_qualname)
