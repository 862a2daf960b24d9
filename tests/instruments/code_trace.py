"""Which Python files of the product run for one thing that it does: a request, an event."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
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


def files_of(calls: Mapping[Function, int]) -> list[str]:
    """The product's files among those of these calls."""
    return sorted({function.file for function in calls} - {""})


class CodeTrace:
    """Records the Python functions that run, on this thread and on each that is started while it is
    entered: enter it before the server under test is made.

    Kernels (.pyx) have no Python functions, and methods that `dataclass` and `NamedTuple` write
    belong to no file. What a module runs while it is imported is none of its functions either.
    """

    def __init__(self) -> None:
        self._functions: dict[CodeType, Function] = {}
        self._calls: Counter[Function] = Counter()
        self._last: Function | None = None
        self._left_out: tuple[str, ...] = ()
        self._records = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = threading.getprofile()
        threading.setprofile(self._on_event)
        return self

    def __exit__(self, *error: object) -> None:
        threading.setprofile(self._before)
        self._records = False

    async def calls_of(
        self,
        action: Callable[[], Awaitable[object]],
        *,
        until: Function | None = None,
        leave_out: tuple[str, ...] = ("engines",),
        times: int = 7,
    ) -> Counter[Function]:
        """The calls of Python functions that one action makes, the fewest of some repetitions;
        with `until` those before the first return of that function. Functions in the folders
        and files `leave_out` do not count, nor does what they call: mock engines are the other
        side.

        What the action needs runs each time; probes and timers of the background run only in
        some repetitions, in most of them on a busy machine, and are left out. Repeat the action
        before, so that nothing is imported, connected or cached by it for the first time.
        """
        self._last = until
        names = ("tests", *leave_out)
        self._left_out = tuple(name if name.endswith(".py") else f"{name}/" for name in names)
        found = [await self._record(action) for _ in range(times)]
        functions = set().union(*found)
        return +Counter({each: min(calls[each] for calls in found) for each in functions})

    async def _record(self, action: Callable[[], Awaitable[object]]) -> Counter[Function]:
        self._calls = calls = Counter[Function]()
        before = sys.getprofile()
        sys.setprofile(self._on_event)
        self._records = True
        try:
            await action()
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        finally:
            self._records = False
            sys.setprofile(before)
        return calls

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        if not self._records or (event != "call" and event != "return"):
            return
        function = self._function_of(frame.f_code)
        if event == "return":
            self._records = function != self._last
        elif function.name != "<module>" and not self._is_left_out(frame):
            self._calls[function] += 1

    def _is_left_out(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if self._function_of(frame.f_code).file.startswith(self._left_out):
                return True
            frame = frame.f_back
        return False

    def _function_of(self, code: CodeType) -> Function:
        found = self._functions.get(code)
        if found is None:
            path, file = Path(code.co_filename), ""
            if path.is_relative_to(ROOT):
                file = path.relative_to(ROOT).as_posix()
            found = self._functions[code] = Function(file, code.co_qualname)
        return found
