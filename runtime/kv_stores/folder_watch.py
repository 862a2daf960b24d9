"""Notices that files of a folder changed: by inotify where there is one, else by looking."""

import asyncio
import ctypes
import os
import sys
from pathlib import Path

_POLL_S = 0.25
_LOOK_S = 2.5
"""How often to look even so: changes made on another machine raise no event."""
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _DELETE = 0x8, 0x40, 0x80, 0x200
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE
_BUFFER = 1 << 16


class FolderWatch:
    """From construction to `close`, on the running loop. The folder has to exist."""

    def __init__(self, folder: Path, *, inotify: bool = True) -> None:
        self._changed = asyncio.Event()
        self._descriptor = _open(folder) if inotify else None
        self._loop = asyncio.get_running_loop()
        if self._descriptor is not None:
            self._loop.add_reader(self._descriptor, self._read)

    async def wait(self, seconds: float | None) -> None:
        """Until something may have changed, or `seconds` are over."""
        longest = _POLL_S if self._descriptor is None else _LOOK_S
        try:
            async with asyncio.timeout(min(longest, longest if seconds is None else seconds)):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def close(self) -> None:
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self) -> None:
        assert self._descriptor is not None
        try:
            # What happened is seen by looking: an event says only that something did.
            os.read(self._descriptor, _BUFFER)
        except BlockingIOError:
            return
        self._changed.set()


def _open(folder: Path) -> int | None:
    """A descriptor of inotify; None where there is none, or no more of them."""
    if not sys.platform.startswith("linux"):
        return None
    system = ctypes.CDLL(None, use_errno=True)
    descriptor = system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if system.inotify_add_watch(descriptor, os.fsencode(folder), _MASK) < 0:
        os.close(descriptor)
        return None
    return int(descriptor)
