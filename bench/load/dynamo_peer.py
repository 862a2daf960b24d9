"""NVIDIA Dynamo's mock workers and frontend as processes, to be measured beside ours.

They need a Python that has ai-dynamo 1.6.1.
"""

import asyncio
import json
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import aiohttp

from ...base.errors import RouterError
from ...process.child_process import ChildError, ChildProcess

HOST = "127.0.0.1"
MODEL = "tiny"
STOP_TIMEOUT_S = 20.0
POLL_S = 0.1
DISCOVERY_BACKEND, EVENT_PLANE = "file", "zmq"
_STARTED = "started"


def write_model(folder: Path, words: int = 2048) -> None:
    """The smallest model folder that Dynamo takes: a tokenizer whose words are w3, w4, ..."""
    folder.mkdir(parents=True)
    special = [
        {"id": id, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for id, text in enumerate(["<s>", "</s>"])
    ]  # fmt: skip
    vocab = {"<s>": 0, "</s>": 1, "<unk>": 2, **{f"w{n}": n for n in range(3, words)}}
    files: dict[str, Any] = {
        "config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"],
                        "num_hidden_layers": 1, "hidden_size": 64, "vocab_size": words,
                        "eos_token_id": 1, "bos_token_id": 0, "max_position_embeddings": 8192},
        "tokenizer.json": {"version": "1.0", "added_tokens": special, "normalizer": None,
                           "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
                           "decoder": None, "truncation": None, "padding": None,
                           "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}},
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>",
                                  "chat_template": "{{ messages[0]['content'] }}"},
        "generation_config.json": {"eos_token_id": 1, "bos_token_id": 0},
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def dynamo_environ(home: Path) -> dict[str, str]:
    """What its processes need to stay on this machine: else they bind and tell the network's
    address."""
    return {
        "DYN_TCP_RPC_HOST": HOST, "DYN_TCP_RESPONSE_STREAM_HOST": HOST,
        "DYN_EVENT_PLANE_HOST": HOST, "HF_HUB_OFFLINE": "1",
        "HOME": str(home), "DYN_LOG": "error",
    }  # fmt: skip


def mocker_arguments(model: Path, workers: int) -> list[str]:
    """Mock workers with blocks of 16 tokens that compute in no time: 0 would be no such speed."""
    return [
        "dynamo.mocker", "--model-path", str(model), "--model-name", MODEL,
        "--num-workers", str(workers), "--block-size", "16",
        "--speedup-ratio", "1000000", "--stagger-delay", "0",
    ]  # fmt: skip


def frontend_arguments(port: int) -> list[str]:
    """The frontend, routing by KV cache."""
    return [
        "dynamo.frontend", "--http-host", HOST, "--http-port", str(port), "--router-mode", "kv",
    ]  # fmt: skip


async def start_module(
    command: Sequence[str], environ: Mapping[str, str], timeout_s: float, stack: AsyncExitStack
) -> ChildProcess:
    """One of its processes, PYTHON -m MODULE ..., stopped with the stack. RouterError if it is not
    started."""
    # They say nothing when they have started, so that a shell says it for them.
    child = ChildProcess(
        ["/bin/sh", "-c", f'echo {_STARTED}; exec "$@"', sys.argv[0], *command],
        stop_timeout_s=STOP_TIMEOUT_S,
        own_session=True,
        env={**environ, "PYTHONPATH": ""},
    )
    stack.push_async_callback(child.stop)
    try:
        await child.start(lambda line: line == _STARTED, timeout_s)
    except ChildError as error:
        raise RouterError(f"{command[2]} {error.reason}") from None
    return child


async def until_answered(
    children: Sequence[ChildProcess], method: str, url: str, asked: Any = None
) -> None:
    """Wait until a question is answered well. RouterError if one of the processes ended."""
    async with aiohttp.ClientSession(trust_env=False) as http:
        while True:
            for child in children:
                if not child.running:
                    said = "\n".join(child.output)
                    raise RouterError(f"Dynamo ended while it started:\n{said}")
            try:
                async with http.request(method, url, json=asked) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(POLL_S)


def free_port() -> int:
    """One that nobody has now: these servers do not say which one they took."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


class DynamoPeer:
    """Workers and a frontend in front of them, from `async with` to its end and never longer.

    Entering returns when the frontend has the model; RouterError if that does not come about.
    A `serve` of ours finds the workers by `discovery_arguments` and `discovery_environ`.
    """

    discovery_arguments = ("--discovery", DISCOVERY_BACKEND, "--event-plane", EVENT_PLANE)

    def __init__(self, python: str, port: int, *, workers: int, start_timeout_s: float) -> None:
        self.address = f"{HOST}:{port}"
        self._python, self._workers = python, workers
        self._start_timeout_s = start_timeout_s
        self._stack = AsyncExitStack()
        self.frontend_pid = self.workers_pid = 0
        self.discovery_environ: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            write_model(home / "model")
            self.discovery_environ = {"DYN_FILE_KV": str(home / "kv")}
            port = int(self.address.rpartition(":")[2])
            mockers = await self._start(
                mocker_arguments(home / "model", self._workers), home, stack
            )
            frontend = await self._start(frontend_arguments(port), home, stack)
            try:
                async with asyncio.timeout(self._start_timeout_s):
                    await self._has_model((mockers, frontend))
            except TimeoutError:
                text = f"Dynamo was not ready within {self._start_timeout_s:g} s"
                raise RouterError(text) from None
            assert mockers.pid is not None and frontend.pid is not None
            self.workers_pid, self.frontend_pid = mockers.pid, frontend.pid
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _start(
        self, arguments: Sequence[str], home: Path, stack: AsyncExitStack
    ) -> ChildProcess:
        more = ("--discovery-backend", DISCOVERY_BACKEND, "--event-plane", EVENT_PLANE)
        environ = {**dynamo_environ(home), **self.discovery_environ}
        module = [self._python, "-m", *arguments, *more]
        return await start_module(module, environ, self._start_timeout_s, stack)

    async def _has_model(self, children: Sequence[ChildProcess]) -> None:
        """Wait until a completion is answered: the model is listed before its workers are known."""
        asked = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 1}
        await until_answered(children, "POST", f"http://{self.address}/v1/completions", asked)
