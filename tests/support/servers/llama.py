"""llama.cpp servers as child processes: the real engine of these tests."""

import sys
from pathlib import Path

from support.free_port import free_port
from support.servers.child import Child

SLOTS, CONTEXT = 2, 1024


class LlamaServer(Child):
    """One server, on a port of its own that it keeps when it is started again."""

    ready_word = "ready"

    def __init__(self, folder: Path, model: Path) -> None:
        super().__init__(folder)
        self._model = model
        self.port = free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"openai+http://{self.address}"

    def command(self) -> list[str]:
        program = Path(__file__).with_name("llama_program.py")
        words = (program, self._model, self.port, SLOTS, CONTEXT)
        return [sys.executable, *map(str, words)]
