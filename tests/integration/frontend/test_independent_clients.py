"""Clients that others wrote, unchanged and in processes of their own: a call and a stream each.

OpenAI's own is in test_openai_client.py.
"""

import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeEngine, chunk, complete
from support.processes import output_of
from support.servers.openai_serving import Served, openai_serving

MODEL = "tiny"
DEADLINE_S = 120.0
"""Imports of some clients take seconds, on a busy machine many."""


async def two_tokens(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
    if request.streaming:
        yield chunk(request, 64)
        yield chunk(request, 65)
    yield complete(request, 64, 65)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with openai_serving(FakeEngine(two_tokens, worker_id=7)) as made:
        yield made


@pytest.fixture
async def said(served: Served) -> str:
    """What every answer says."""
    text: str = (await served.post("/detokenize", {"tokens": [64, 65]}))[1]["prompt"]
    return text


async def run(*command: str, **variables: str) -> str:
    """A command's output; it must end well."""
    return await output_of(*command, env={**os.environ, **variables}, timeout_s=DEADLINE_S)


def need(module: str) -> None:
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install '.[test]'")


async def curl(served: Served, *more: str, **fields: Any) -> str:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    message = {"role": "user", "content": "Hello"}
    body = {"model": MODEL, "messages": [message], "max_tokens": 2, **fields}
    url = f"{served.url}/v1/chat/completions"
    options = ("-sS", "-H", "Content-Type: application/json", "-d", json.dumps(body))
    return await run("curl", *options, *more, url)


async def test_curl(served: Served, said: str) -> None:
    told = json.loads(await curl(served))
    assert told["choices"][0]["message"] == {"role": "assistant", "content": said}


async def test_curl_streams(served: Served, said: str) -> None:
    lines = (await curl(served, "-N", stream=True)).splitlines()
    assert lines[1::2] == [""] * (len(lines) // 2) and lines[-2] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2:2]]
    told = "".join(each["choices"][0]["delta"].get("content", "") for each in chunks)
    assert told == said and chunks[-1]["choices"][0]["finish_reason"] == "length"


LANGCHAIN = """
import json, sys
from langchain_openai import ChatOpenAI
model = ChatOpenAI(
    base_url=sys.argv[1], api_key="none", model=sys.argv[2], max_tokens=2, max_retries=0
)
whole = model.invoke("Hello")
pieces = [piece for piece in model.stream("Hello")]
print(json.dumps([
    whole.content, whole.response_metadata["finish_reason"], whole.usage_metadata["output_tokens"],
    "".join(piece.content for piece in pieces),
]))
"""


async def test_langchain(served: Served, said: str) -> None:
    need("langchain_openai")
    told = await run(
        sys.executable, "-c", LANGCHAIN, f"{served.url}/v1", MODEL, LANGSMITH_TRACING="false"
    )
    assert json.loads(told) == [said, "length", 2, said]


@pytest.mark.parametrize("stream", [(), ("--no-stream",)])
async def test_llm(served: Served, said: str, tmp_path: Path, stream: tuple[str, ...]) -> None:
    need("llm")
    known = {"model_id": "fleet", "model_name": MODEL, "api_base": f"{served.url}/v1"}
    # A list of one: JSON is YAML.
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([known]))
    command = (sys.executable, "-m", "llm", "-m", "fleet", "--key", "none", "--no-log")
    told = await run(
        *command, *stream, "-o", "max_tokens", "2", "Hello", LLM_USER_PATH=str(tmp_path)
    )
    assert told.rstrip("\n") == said.rstrip("\n")
