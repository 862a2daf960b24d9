"""What `serve` imports before it knows what it is to use: a warm restart waits for all of it."""

import json
import subprocess
import sys

import pytest

STARTS = {
    "serve": "dynamo_router.frontend.serve",
    "library": "dynamo_router.router.kv_router",
}
# What each is for, and imported by who uses that alone.
NOT_IMPORTED = {
    "aetcd": "the store etcd",
    "kubernetes_asyncio": "the store Kubernetes",
    "zmq": "event planes and streams over ZMQ",
    "opentelemetry": "spans",
    "jinja2": "chat templates",
    "tokenizers": "text to tokens",
    "transformers": "tokenizers that tokenizers cannot read",
    "matplotlib": "pictures of benches",
    "networkx": "the synthesizer",
    "scipy": "confidence of benches",
    "hypothesis": "tests",
    "pytest": "tests",
    "dynamo_router.bench": "benches",
    "dynamo_router.frontend.processor": "text to tokens",
    "dynamo_router.engines.adapters": "engines in this process",
    "dynamo_router.engines.mocker.fleet": "mock engines in this process",
}


@pytest.mark.parametrize("module", STARTS.values(), ids=STARTS)
def test_what_is_heavy_is_imported_by_who_uses_it(module: str) -> None:
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    imported = set(json.loads(told.stdout))
    assert module in imported
    assert imported & NOT_IMPORTED.keys() == set()
