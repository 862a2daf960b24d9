"""Saves the index to a file from time to time, so that the next process starts with it."""

import asyncio
from pathlib import Path

import structlog

from ..base.errors import ConfigError
from ..indexer.event_index import EventIndex, SnapshotHead, load_index, save_index
from ..process.supervised import stopped, supervise

log = structlog.get_logger(__name__)


class SnapshotTask:
    """Loads the file once, then writes it every `interval_s` and at the end.

    Nothing that is wrong with the file stops the service: it starts cold, or goes on.
    """

    def __init__(
        self, index: EventIndex, path: Path, head: SnapshotHead, *, interval_s: float
    ) -> None:
        self._index, self._path, self._head = index, path, head
        self._interval = interval_s
        self._saving = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.restored = 0
        """sources that the file had"""
        self.saves = 0
        self.failures = 0
        """times that the file could not be read or written"""
        self.saved_bytes = 0
        """size of the last file written"""

    async def start(self) -> None:
        """Load the file into an index without workers, and begin to write it."""
        try:
            found = await asyncio.to_thread(load_index, self._index, self._path, self._head)
        except ConfigError as error:
            self.failures += 1
            log.warning("starting with an empty index", path=str(self._path), error=str(error))
        except Exception:
            self.failures += 1
            log.exception("starting without all of the saved index", path=str(self._path))
        else:
            self.restored = found or 0
            log.info("index restored", path=str(self._path), sources=self.restored)
        self._task = supervise("index snapshot", self._run)

    async def close(self) -> None:
        """Write the file once more. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            await stopped(task)
            await self._save()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            # A thread cannot be cancelled; `close` waits for the lock.
            await asyncio.shield(self._save())

    async def _save(self) -> None:
        async with self._saving:
            try:
                self.saved_bytes = await asyncio.to_thread(
                    save_index, self._index, self._path, self._head
                )
                self.saves += 1
            except OSError as error:
                self.failures += 1
                log.warning("cannot write the index", path=str(self._path), error=str(error))
            except Exception:
                self.failures += 1
                log.exception("cannot write the index", path=str(self._path))
