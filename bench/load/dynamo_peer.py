"""NVIDIA Dynamo's processes, to be measured beside ours: mock workers, frontend, selection service.

They need a Python that has ai-dynamo 1.6.1.
"""

import asyncio
import contextlib
import json
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from ...base.errors import RouterError
from ...process.child_process import ChildProcess
from .child import pid_of, start_child

HOST = "127.0.0.1"
MODEL = "tiny"
POLL_S = 0.1
DISCOVERY_BACKEND, EVENT_PLANE = "file", "zmq"
DISCOVERY_ARGUMENTS = ("--discovery", DISCOVERY_BACKEND, "--event-plane", EVENT_PLANE)
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
    """What its processes need to stay on this machine: else they bind and announce the network's
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
    """The frontend, routing by KV cache, with all APIs that it has."""
    return [
        "dynamo.frontend", "--http-host", HOST, "--http-port", str(port), "--router-mode", "kv",
        "--enable-anthropic-api",
    ]  # fmt: skip


async def start_silent(
    command: Sequence[str], environ: Mapping[str, str], timeout_s: float, stack: AsyncExitStack
) -> ChildProcess:
    """A process that prints nothing when it has started, stopped with the stack. RouterError if it
    is not started."""
    shell = ["/bin/sh", "-c", f'echo {_STARTED}; exec "$@"', sys.argv[0], *command]
    env = {**environ, "PYTHONPATH": ""}
    name = " ".join(command[:3])
    return await start_child(
        name, shell, stack, lambda line: line == _STARTED, timeout_s=timeout_s, env=env
    )


async def until_answered(
    children: Sequence[ChildProcess],
    method: str,
    url: str,
    timeout_s: float,
    asked: Any = None,
    *,
    name: str = "Dynamo",
) -> None:
    """Wait until a question is answered well. RouterError, naming the peer, if that takes longer,
    or one of the processes ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s), aiohttp.ClientSession(trust_env=False) as http:
            while True:
                for child in children:
                    if not child.running:
                        printed = "\n".join(child.output)
                        raise RouterError(f"{name} ended while it started:\n{printed}")
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.request(method, url, json=asked) as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(POLL_S)
    raise RouterError(f"{name} was not ready within {timeout_s:g} s")


def free_port() -> int:
    """One that is free now: these servers do not say which one they took."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


class Dynamo(NamedTuple):
    """Running workers and a frontend in front of them. A `serve` of ours with DISCOVERY_ARGUMENTS
    finds the workers if `environ` is in its environment."""

    address: str
    frontend_pid: int
    workers_pid: int
    environ: dict[str, str]


async def start_dynamo(
    python: str,
    workers: int,
    timeout_s: float,
    stack: AsyncExitStack,
    model_path: str | None = None,
) -> Dynamo:
    """Start both, stopped with the stack. `model_path`: not given, the smallest there is.
    RouterError if the frontend does not get the model."""
    home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    if model_path is None:
        model_path = str(home / "model")
        write_model(Path(model_path))
    environ = {"DYN_FILE_KV": str(home / "kv")}
    port = free_port()

    async def start(arguments: list[str]) -> ChildProcess:
        more = ("--discovery-backend", DISCOVERY_BACKEND, "--event-plane", EVENT_PLANE)
        command = [python, "-m", *arguments, *more]
        return await start_silent(command, {**dynamo_environ(home), **environ}, timeout_s, stack)

    mockers = await start(mocker_arguments(Path(model_path), workers))
    frontend = await start(frontend_arguments(port))
    # The model is listed before its workers are known.
    asked = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 1}
    url = f"http://{HOST}:{port}/v1/completions"
    await until_answered((mockers, frontend), "POST", url, timeout_s, asked)
    return Dynamo(f"{HOST}:{port}", pid_of(frontend), pid_of(mockers), environ)


async def start_dynamo_selector(
    python: str, timeout_s: float, stack: AsyncExitStack
) -> tuple[int, str]:
    """Start Dynamo's selection service, stopped with the stack; its pid and address.

    It chooses among the workers that are registered over HTTP, without their KV events. It listens
    on all addresses: that is no setting of it. RouterError if it does not start.
    """
    home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    port = free_port()
    child = await start_silent(
        [python, "-m", "dynamo.select_service", "--port", str(port)],
        {**dynamo_environ(home), "DYN_USE_KV_EVENTS": "false"},
        timeout_s,
        stack,
    )
    await until_answered((child,), "GET", f"http://{HOST}:{port}/health", timeout_s)
    return pid_of(child), f"{HOST}:{port}"
