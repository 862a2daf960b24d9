"""How long single requests to the OpenAI door hold the event loop of a router:
python tests/instruments/openai_gaps.py [WORD OF A CASE]

A server whose engines run elsewhere; a client in another process sends each body some times, one
after the other. See loop_gaps.py for what is measured.
"""

import argparse
import asyncio
import json
import time
from typing import Any

import aiohttp
from loop_gaps import measure

from dynamo_router.frontend.config import FrontendConfig, ServeFrontendConfig
from dynamo_router.frontend.serve import new_router
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.mock_process import MockEnginesConfig
from dynamo_router.server.server_parts import ServerParts

CALLS = 4
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
M = 1 << 20
ASK = [{"role": "user", "content": "a"}]
DEEP: Any = 1
for _ in range(900):
    DEEP = [DEEP]


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": ASK, **more}


def tools(count: int, properties: int) -> list[Any]:
    schema = {str(n): {"type": "string", "description": "d" * 20} for n in range(properties)}
    function = {"name": "f", "parameters": {"type": "object", "properties": schema}}
    return [{"type": "function", "function": function}] * count


CASES: dict[str, tuple[str, Any]] = {
    "500 k messages": (CHAT, lambda: {"messages": ASK * 500_000}),
    "4096 messages": (CHAT, lambda: {"messages": ASK * 4096}),
    "1 M chat_template_kwargs": (
        CHAT,
        lambda: chat(chat_template_kwargs={str(n): n for n in range(M)}),
    ),
    "256 kwargs of 10 kB": (
        CHAT,
        lambda: chat(chat_template_kwargs={str(n): "x" * 10_000 for n in range(256)}),
    ),
    "/detokenize 7.7 M ids": ("/detokenize", lambda: {"tokens": [5] * 7_700_000}),
    "/detokenize 128 k ids": ("/detokenize", lambda: {"tokens": [5] * 131_072}),
    "430 k tool_calls": (
        CHAT,
        lambda: {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}] * 430_000}]},
    ),
    "1024 tool_calls": (
        CHAT,
        lambda: {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}] * 1024,
                }
            ]
        },
    ),
    "128 x 50 k embedding ids": (EMBEDDINGS, lambda: {"input": [[5] * 50_000] * 128}),
    "128 x 2 k embedding ids": (EMBEDDINGS, lambda: {"input": [[5] * 2000] * 128}),
    "1 M stop_token_ids": (COMPLETIONS, lambda: {"prompt": "a", "stop_token_ids": [1] * M}),
    "128 x 50 k prompt ids": (COMPLETIONS, lambda: {"prompt": [[5] * 50_000] * 128}),
    "128 x 2 k prompt ids": (COMPLETIONS, lambda: {"prompt": [[5] * 2000] * 128}),
    "2 M prompt ids": (COMPLETIONS, lambda: {"prompt": [5] * (2 * M)}),
    "3 M token_data": (CHAT, lambda: chat(nvext={"token_data": [5] * (3 * M)})),
    "250 k token_data": (CHAT, lambda: chat(nvext={"token_data": [5] * 250_000})),
    "tools: 1536 of 5 properties": (CHAT, lambda: chat(tools=tools(1536, 5))),
    "tools: 100 of 30 properties": (CHAT, lambda: chat(tools=tools(100, 30))),
    "response_format of 5000 properties": (
        CHAT,
        lambda: chat(
            response_format={
                "type": "json_schema",
                "json_schema": {
                    "name": "x",
                    "schema": {"properties": {str(n): {"type": "string"} for n in range(5000)}},
                },
            }
        ),
    ),
    "900 deep metadata": (CHAT, lambda: chat(metadata=[DEEP] * 30)),
    "metadata of 1 M": (CHAT, lambda: chat(metadata={str(n): "" for n in range(M)})),
    "metadata of 10 k": (CHAT, lambda: chat(metadata={str(n): "" for n in range(10_000)})),
    "logit_bias of 500 k": (
        COMPLETIONS,
        lambda: {"prompt": "a", "logit_bias": {str(n): 1 for n in range(500_000)}},
    ),
    "100 k stop strings": (COMPLETIONS, lambda: {"prompt": "a", "stop": ["x"] * 100_000}),
    "1 content of 300 k parts": (
        CHAT,
        lambda: {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 300_000}]
        },
    ),
    "text of 1 MB": ("/tokenize", lambda: {"prompt": "word " * (M // 5)}),
    "text of 15 MB": ("/tokenize", lambda: {"prompt": "word " * (3 * M)}),
    "chat text of 15 MB": (
        CHAT,
        lambda: {"messages": [{"role": "user", "content": "word " * (3 * M)}]},
    ),
    "n of 128": (COMPLETIONS, lambda: {"prompt": [5] * 20_000, "n": 128}),
}


async def serve(word: str) -> None:
    config = ServeFrontendConfig(
        port=0,
        http_port=0,
        router=KvRouterConfig(block_size=16, use_kv_events=False),
        frontend=FrontendConfig(http_frontend=0),
        mock_engines=MockEnginesConfig(mockers=2),
        model_id="tiny",
    )
    server = new_router(config, ServerParts(config))
    openai: Any = server.listeners[-1]
    try:
        await server.start()
        await asyncio.sleep(2)
        await measure((case for case in CASES if word in case), __file__, "--at", openai.address)
    finally:
        await server.close()


async def call(case: str, address: str) -> None:
    path, make = CASES[case]
    body = json.dumps({"model": "tiny", "max_tokens": 2, **make()}).encode()
    print("ready", flush=True)
    await asyncio.sleep(0.3)
    took, result = [], ""
    async with aiohttp.ClientSession(f"http://{address}") as session:
        for _ in range(CALLS):
            began = time.perf_counter()
            async with session.post(path, data=body) as answer:
                result = f"{answer.status} {(await answer.read())[:90]!r}"
            took.append((time.perf_counter() - began) * 1e3)
    print(f"{len(body)} bytes: {result}; took {min(took):.0f} to {max(took):.0f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--at")
    args = parser.parse_args()
    asyncio.run(serve(args.word) if args.at is None else call(args.word, args.at))
