"""NVIDIA Dynamo's own mock workers and frontend, as child processes of a test.

They need a Python that has ai-dynamo 1.6.1, which the environment names in DYNAMO_PEER.
"""

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from support.free_port import free_port
from support.servers.child import Child

PEER = os.environ.get("DYNAMO_PEER")
HERE = "127.0.0.1"


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


class DynamoProcess(Child):
    """A module of Dynamo's with `environ`; `planes` are its flags for discovery and events."""

    def __init__(self, folder: Path, environ: dict[str, str], backend: str, events: str) -> None:
        super().__init__(folder)
        self.folder, self.environ = folder, environ
        self.planes = ["--discovery-backend", backend, "--event-plane", events]

    def module(self) -> list[str]:
        raise NotImplementedError

    def command(self) -> list[str]:
        environ = {
            "DYN_TCP_RPC_HOST": HERE, "DYN_TCP_RESPONSE_STREAM_HOST": HERE,
            "DYN_EVENT_PLANE_HOST": HERE, "HF_HUB_OFFLINE": "1",
            "HOME": str(self.folder), "DYN_LOG": "error",
            **self.environ,
        }  # fmt: skip
        settings = (f"{name}={value}" for name, value in environ.items())
        return ["/usr/bin/env", *settings, str(PEER), "-m", *self.module(), *self.planes]


class DynamoMockers(DynamoProcess):
    """`count` mock workers, each an instance of its own, with blocks of 16 tokens."""

    def __init__(
        self, folder: Path, environ: dict[str, str], backend: str, events: str, count: int
    ) -> None:
        super().__init__(folder, environ, backend, events)
        self.count = count
        self._model = folder / "model"
        write_model(self._model)

    def module(self) -> list[str]:
        return [
            "dynamo.mocker", "--model-path", str(self._model), "--model-name", "tiny",
            "--num-workers", str(self.count), "--block-size", "16",
            "--speedup-ratio", "1000000", "--stagger-delay", "0",
        ]  # fmt: skip

    def ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()
        return True  # who is there is seen in the store


class DynamoFrontend(DynamoProcess):
    """Dynamo's frontend, routing by KV cache."""

    def __init__(self, folder: Path, environ: dict[str, str], backend: str, events: str) -> None:
        super().__init__(folder, environ, backend, events)
        self.port = free_port()

    def module(self) -> list[str]:
        return [
            "dynamo.frontend", "--http-host", HERE, "--http-port", str(self.port),
            "--router-mode", "kv",
        ]  # fmt: skip

    def ready(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()
        try:
            return bool(self.ask("/v1/models")["data"])
        except (urllib.error.URLError, ConnectionError):
            return False

    def ask(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://{HERE}:{self.port}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)
