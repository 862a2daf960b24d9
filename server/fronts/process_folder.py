"""ProcessFolder: where the processes of a router find each other's sockets."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX, LOCK_FILE = "dynamo-router-fronts-", "lock"


class ProcessFolder:
    """A folder that only our user may enter, until `remove`.

    Its maker holds a lock in it, which the kernel releases with the process, whatever ends that.
    Folders whose lock is free are of routers that were killed: they are removed here.
    """

    def __init__(self) -> None:
        remove_leftovers()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Held before it has its name: no process finds it free.
        new = self.path / f"{LOCK_FILE}.new"
        self._lock = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / LOCK_FILE)

    def remove(self) -> None:
        """Remove it with all that is in it. Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def remove_leftovers() -> None:
    """Remove the folders of our user whose maker is gone."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as found:
        for entry in found:
            if entry.name.startswith(PREFIX):
                with suppress(OSError):
                    _remove_if_free(entry)


def _remove_if_free(entry: "os.DirEntry[str]") -> None:
    """OSError if it is held, or no such folder. One without a lock is just being made."""
    is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
    if not is_ours or not entry.is_dir(follow_symlinks=False):
        return
    lock = os.open(Path(entry.path) / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(lock)
