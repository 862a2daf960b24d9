"""A server program as a child process of a test: killed, paused and started again at will."""

import os
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path
from typing import Self

from support.polling import until, wait_until
from support.processes import stands_still

from dynamo_router.process.child_process import die_with_parent

START_S = 60.0


def find_program(name: str) -> str:
    """The path of a program that a wheel brought."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    assert found is not None, f"no {name}: see the test extra"
    return str(Path(found).resolve())


class Child:
    """`launch` it and wait `until_ready`, or `start` it, which does both and blocks; or enter it,
    for as long as it is to run."""

    ready_word = ""
    """what it logs once it serves"""
    start_s = START_S
    """how long that may take"""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def command(self) -> list[str]:
        raise NotImplementedError

    def launch(self) -> None:
        assert self._process is None
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                die_with_parent(self.command()), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        return self.ready_word in self._log.read_text()

    def start(self) -> None:
        self.launch()
        wait_until(self.ready, self.start_s)

    async def come_back(self) -> None:
        """As `start`, while the event loop goes on."""
        self.launch()
        await until(self.ready, self.start_s)

    def kill(self) -> None:
        """End it at once. Nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Returns once all of its threads stand still: until then it may go on answering."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        pid = self._process.pid
        wait_until(lambda: stands_still(pid))

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
