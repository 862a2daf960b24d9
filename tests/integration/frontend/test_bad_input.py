"""What clients get wrong, over real sockets: each case has its status and OpenAI's shape, and the
frontend goes on."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.fake_engine import FakeEngine, chunk
from support.polling import until
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.server.caller_limits import CallerLimits
from dynamo_router.server.request_limits import RequestLimits

MODEL = "tiny"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(worker_id=7)


@pytest.fixture
async def served(engine: FakeEngine) -> AsyncIterator[Served]:
    async with openai_serving(engine) as made:
        yield made


def body(field: str, value: bytes) -> bytes:
    return b'{"model": "tiny", "max_tokens": 2, "%s": %s}' % (field.encode(), value)


def message(content: bytes) -> bytes:
    return b'[{"role": "user", "content": %s}]' % content


BAD = [
    (COMPLETIONS, body("prompt", b'"\xff\xfe"'), "prompt"),
    (CHAT, body("messages", message(b'"\xff"')), "utf-8"),
    (COMPLETIONS, body("prompt", b'["a", "\xc3"]'), "prompt"),
    (COMPLETIONS, body("prompt", b'"\\ud800"'), ""),
    (CHAT, body("messages", message(b'"\\ud800"')), ""),
    (COMPLETIONS, body("prompt", b"[" * 100_000), ""),
    (CHAT, body("messages", b"[" * 100_000), ""),
    (CHAT, body("messages", message(b"[" * 5000 + b"]" * 5000)), ""),
    (COMPLETIONS, body("prompt", b"[1, 1e9]"), "prompt"),
    (COMPLETIONS, body("prompt", b"[1.5]"), "prompt"),
    (COMPLETIONS, body("prompt", b"[4294967296]"), "prompt"),
    (COMPLETIONS, body("prompt", b'["a", [1]') + b"]}", ""),
    (COMPLETIONS, body("prompt", b'{"a": 1}'), "prompt"),
    (COMPLETIONS, body("prompt", b"null"), "prompt"),
    (COMPLETIONS, b"", "truncated"),
    (COMPLETIONS, b"[]", "object"),
    (COMPLETIONS, b"null", "object"),
    (COMPLETIONS, body("prompt", b'"a"')[:-1] + b', "seed": 18446744073709551616}', "seed"),
    (COMPLETIONS, body("prompt", b'"a"')[:-1] + b', "temperature": NaN}', ""),
    (COMPLETIONS, body("prompt", b'"a"')[:-1] + b', "temperature": 1e999}', ""),
    (CHAT, body("messages", b'[{"role": "user", "content": [{"type": "text"}]}]'), "content"),
    (CHAT, body("messages", b'[{"role": "user", "content": [3]}]'), "content"),
    (CHAT, body("messages", b'["hello"]'), "messages"),
    ("/tokenize", b'{"prompt": "\xff"}', ""),
    ("/detokenize", b'{"tokens": [-1]}', "token"),
    ("/detokenize", b'{"tokens": [99999999999999999999]}', ""),
]


@pytest.mark.parametrize("path, sent, words", BAD)
async def test_bodies_that_are_no_requests(
    served: Served, path: str, sent: bytes, words: str
) -> None:
    status, told = await served.post(path, sent)
    assert status == 400, told
    assert set(told["error"]) == {"message", "type", "param", "code"}
    assert told["error"]["type"] == "invalid_request_error"
    assert words.lower() in json.dumps(told["error"]).lower()
    assert (await served.post(COMPLETIONS, body("prompt", b'"a"')))[0] == 200


async def test_a_model_that_is_not_there_and_those_that_are(served: Served) -> None:
    for path, fields in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": []})):
        status, told = await served.post(path, {"model": "gpt-9", **fields})
        assert status == 404 and told["error"]["code"] == "model_not_found"
        assert "gpt-9" in told["error"]["message"] and "tiny" in told["error"]["message"]


async def test_a_client_that_does_not_read_is_cut_off_and_its_worker_free(
    engine: FakeEngine,
) -> None:
    sent = 0

    async def flood(engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        nonlocal sent
        while True:
            yield chunk(request, *range(300, 400))
            sent += 1

    engine.script = flood
    limits = RequestLimits(write_timeout_s=0.5)
    async with openai_serving(engine, limits=limits) as served:
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        try:
            asked = json.dumps({"model": MODEL, "prompt": "a", "stream": True}).encode()
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(asked)}"
            writer.write(head.encode() + b"\r\n\r\n" + asked)
            await until(lambda: sent > 0)
            await until(lambda: engine.cancelled or engine.aborted)
            await until(lambda: served.server.dispatcher.in_flight == 0)
        finally:
            writer.close()


async def test_a_body_of_50_mb_is_refused_in_words(served: Served) -> None:
    """The client is not cut off in the middle, where it would not read why."""
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    length = 50 << 20
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n"
    try:
        writer.write(head.encode())
        for _ in range(50):
            writer.write(b" " * (1 << 20))
            await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    head, _, told = answer.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 413 ") and "connection: close" in head
    assert "longer than 16777216 bytes" in json.loads(told)["error"]["message"]
    assert (await served.post(COMPLETIONS, body("prompt", b'"a"')))[0] == 200


@pytest.mark.parametrize(
    "sent, status",
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"x" * (1 << 20), 431),
        (b"\x16\x03\x01\x02\x00", 400),
    ],
)
async def test_what_is_no_http_is_refused_in_openais_shape(
    served: Served, sent: bytes, status: int
) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    head, _, told = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert json.loads(told)["error"]["type"] == "invalid_request_error"


async def test_a_prompt_of_too_many_tokens_is_refused_in_words(engine: FakeEngine) -> None:
    async with openai_serving(engine, peers=CallerLimits(max_prompt_tokens=8)) as served:
        for path, given in (
            (COMPLETIONS, {"prompt": "a " * 20}),
            (CHAT, {"messages": [{"role": "user", "content": "a " * 20}]}),
        ):
            status, answer = await served.post(path, {"model": MODEL, "max_tokens": 2, **given})
            assert status == 400 and "max_prompt_tokens" in answer["error"]["message"]
        assert served.server.pool.hits.counts() == {"max_prompt_tokens": 2}
        assert engine.requests == []
