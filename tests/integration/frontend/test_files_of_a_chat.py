"""How many Python files an OpenAI chat crosses on its way from a client's socket to an engine's."""

import asyncio
import socket

import msgspec
from instruments.code_trace import CodeTrace, Function, files_of
from support.fake_engine import FakeEngine
from support.servers.openai_serving import openai_serving

from dynamo_router.server.mock_process import MockEnginesConfig

SENT = Function("transport/http2/client_channel.py", "ClientConnection.request")
ENGINES = "engines"
DECIDE = ("router", "slots", "indexer")
"""Where it goes is one call, `KvRouter.decide`: the walk of a decision is one of its own."""
OBSERVE = ("server/dashboard", "server/metrics", "server/answer_watch.py", "base/request_record.py")
"""These look at requests from aside, and at some of them more closely than at others."""
MOST_TO_CARRY = 35
MOST_IN_ALL = 61


def _chat(connection: socket.socket) -> None:
    body = msgspec.json.encode(
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "a prompt of some words"}],
            "max_tokens": 4,
            "stream": True,
        }
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}"
    connection.sendall(head.encode() + b"\r\n\r\n" + body)
    answer = b""
    while not answer.endswith(b"0\r\n\r\n"):
        answer += connection.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"data: ") > 4, answer
    assert b"[DONE]" in answer


async def test_a_chat_crosses_few_files() -> None:
    engines = MockEnginesConfig(mockers=1, speedup_ratio=1000.0)
    with CodeTrace() as trace:
        async with openai_serving(mock_engines=engines, model_id="tiny") as served:
            host, _, port = served.url.removeprefix("http://").rpartition(":")
            with socket.create_connection((host, int(port))) as connection:

                async def chat() -> None:
                    await asyncio.to_thread(_chat, connection)

                for _ in range(3):
                    await chat()
                others = (ENGINES, *OBSERVE)
                everything = files_of(await trace.calls_of(chat, leave_out=others))
                others += DECIDE
                carry = files_of(await trace.calls_of(chat, until=SENT, leave_out=others))
    assert len(carry) <= MOST_TO_CARRY, "\n".join([f"{len(carry)} files", *carry])
    assert len(everything) <= MOST_IN_ALL, "\n".join([f"{len(everything)} files", *everything])


async def test_all_answers_of_a_request_share_its_prompt_and_none_is_parsed_again() -> None:
    engine = FakeEngine(worker_id=7)
    with CodeTrace() as trace:
        async with openai_serving(engine) as served:
            body = {"model": "tiny", "prompt": "a prompt " * 20, "n": 3, "max_tokens": 2}

            async def complete() -> None:
                status, answer = await served.post("/v1/completions", body)
                assert status == 200 and len(answer["choices"]) == 3

            await complete()
            calls = await trace.calls_of(complete, times=1)
    assert len({request.request_id for request in engine.requests}) == 6
    assert calls[Function("router/prompt.py", "Prompt._hash")] == 1
    assert "server/dispatch/generate_request.py" not in files_of(calls)
