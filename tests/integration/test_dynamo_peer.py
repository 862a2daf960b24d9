"""Dynamo's own mock workers, called through our runtime. Needs them, and is not the only proof:
set DYNAMO_PEER to a Python that has ai-dynamo 1.6.1. The recorded frames of it are tested always.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.polling import until
from support.servers.child import Child

from dynamo_router.runtime import Client, DistributedRuntime
from dynamo_router.runtime.kv_stores import FileStore

PEER = os.environ.get("DYNAMO_PEER")
pytestmark = pytest.mark.skipif(PEER is None, reason="DYNAMO_PEER names no Python with ai-dynamo")
WORKERS = 3


class Mockers(Child):
    """Dynamo's mock workers, which meet in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._model = folder / "model"
        self.store = folder / "kv"
        _write_model(self._model)

    def command(self) -> list[str]:
        here = "127.0.0.1"
        environ = {
            "DYN_FILE_KV": str(self.store), "DYN_DISCOVERY_BACKEND": "file",
            "DYN_TCP_RPC_HOST": here, "DYN_TCP_RESPONSE_STREAM_HOST": here,
            "DYN_EVENT_PLANE_HOST": here, "DYN_EVENT_PLANE": "zmq", "HF_HUB_OFFLINE": "1",
            "DYN_LOG": "error",
        }  # fmt: skip
        return [
            "/usr/bin/env", *(f"{name}={value}" for name, value in environ.items()),
            str(PEER), "-m", "dynamo.mocker", "--model-path", str(self._model),
            "--model-name", "tiny", "--num-workers", str(WORKERS), "--block-size", "16",
            "--speedup-ratio", "1000000", "--stagger-delay", "0",
            "--discovery-backend", "file", "--event-plane", "zmq",
        ]  # fmt: skip

    def ready(self) -> bool:
        return len(list(self.store.glob("v1/instances/*generate*"))) == WORKERS


def _write_model(folder: Path) -> None:
    """The smallest tokenizer that Dynamo takes."""
    folder.mkdir(parents=True)
    special = [
        {"id": id, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for id, text in enumerate(["<s>", "</s>"])
    ]  # fmt: skip
    words = {"<s>": 0, "</s>": 1, "<unk>": 2, **{f"w{n}": n for n in range(3, 2048)}}
    files: dict[str, Any] = {
        "config.json": {"model_type": "llama", "vocab_size": 2048, "eos_token_id": 1,
                        "bos_token_id": 0, "max_position_embeddings": 8192},
        "tokenizer.json": {"version": "1.0", "added_tokens": special, "normalizer": None,
                           "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
                           "decoder": None, "truncation": None, "padding": None,
                           "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}},
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"},
        "generation_config.json": {"eos_token_id": 1, "bos_token_id": 0},
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


@pytest.fixture
def mockers(tmp_path: Path) -> Iterator[Mockers]:
    running = Mockers(tmp_path)
    running.start()
    yield running
    running.kill()


async def tokens(client: Client, prompt: int, count: int) -> int:
    body = {"token_ids": list(range(prompt, prompt + 40)), "stop_conditions": {"max_tokens": count}}
    parts = [part async for part in client.round_robin(body)]
    assert parts[-1]["finish_reason"] == "length"
    return sum(len(part["token_ids"]) for part in parts)


async def test_a_thousand_completions_of_dynamos_workers(mockers: Mockers) -> None:
    async with DistributedRuntime(FileStore(mockers.store)) as runtime:
        client = await runtime.client("dynamo.backend.generate")
        await until(lambda: len(client.instances) == WORKERS)
        for start in range(0, 1000, 50):
            counts = await asyncio.gather(*(tokens(client, start + n, 8) for n in range(50)))
            assert counts == [8] * 50
        for instance in await runtime.instances():
            if instance.name.endpoint.startswith("worker_kv_query_source_"):
                recovery = await runtime.client(str(instance.name))
                question = {"worker_id": instance.instance_id, "dp_rank": 0, "kind": "recovery",
                            "start_event_id": 1, "end_event_id": None}  # fmt: skip
                (answer,) = [part async for part in recovery.random(question)]
                assert answer["Events"]["last_event_id"] > 0
        mockers.kill()
        await until(lambda: not client.instances, 30.0)
