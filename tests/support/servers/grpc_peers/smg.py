"""SMG, a gateway in Rust that calls TensorRT-LLM's gRPC servers: SMG names its program."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.free_port import free_port
from support.servers.child import Child

from dynamo_router.engines import mocker

TOKENIZER = Path(mocker.__file__).parent / "data"


class Smg(Child):
    """OpenAI's API on its port."""

    ready_word = "Completed job: type=AddWorker"

    def __init__(self, folder: Path, program: str, worker: str, model: str) -> None:
        super().__init__(folder)
        self._program, self._worker, self._model = program, worker, model
        self.port = free_port()

    def ready(self) -> bool:
        return super().ready() and f"registered tokenizer '{self._model}'" in self._log.read_text()

    def command(self) -> list[str]:
        model = ["--model-path", str(TOKENIZER), "--worker-urls", f"grpc://{self._worker}"]
        ports = ["--port", str(self.port), "--prometheus-port", str(free_port())]
        return [self._program, "launch", *model, *ports, "--log-level", "debug"]


@asynccontextmanager
async def smg_before(worker: str, model: str, folder: Path) -> AsyncIterator[str]:
    """The address of an SMG that calls this server of a model. The test is skipped without SMG."""
    program = os.environ.get("SMG") or shutil.which("smg")
    if program is None:
        pytest.skip("no smg (pip install smg, into an environment of its own; SMG names it)")
    smg = Smg(folder, program, worker, model)
    await smg.come_back()
    try:
        yield f"http://127.0.0.1:{smg.port}"
    finally:
        smg.kill()
