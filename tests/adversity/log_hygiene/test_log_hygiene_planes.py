"""What a router's log says of a hostile worker behind Dynamo's request plane over NATS: in its
acknowledgements, in each frame of its answers, and of strangers on its own ports and subjects.

See test_log_hygiene.py. One line for each thing that happened, no line of theirs, no stack.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import nats
import pytest
from nats.aio.msg import Msg
from support.adversity.log_hygiene import FORGED, SECRET, TEXTS, check_log
from support.calls import messages_of
from support.fake_engine import prompt
from support.free_port import free_port
from support.polling import until
from support.processes import command, http_json, http_text

from dynamo_router.runtime.components import EndpointName, Instance
from dynamo_router.runtime.event_planes import EmbeddedNats
from dynamo_router.runtime.kv_stores import open_store
from dynamo_router.runtime.request_planes.frames import encode_two_part
from dynamo_router.runtime.request_planes.messages import (
    data_frame,
    decode_request_message,
    final_frame,
    handshake,
    prologue,
)
from dynamo_router.workers.records import ModelCard, encode_card
from dynamo_router.workers.trtllm_proto import SERVICE

SUBJECT = "dynamo_backend.generate-5"
NAME = EndpointName("dynamo", "backend", "generate")
Frames = Callable[[str, str], list[bytes]]
"""What a worker sends home, by a text and the request's codec, behind the handshake."""

ACKS: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    lambda text: f"Server unavailable: {text}",
    lambda text: f"Server overloaded: {text}",
)
ANSWERS: tuple[Frames, ...] = (
    lambda text, codec: [prologue(text)],
    lambda text, codec: [encode_two_part(json.dumps({text: text, "error": text}).encode())],
    lambda text, codec: [prologue(), encode_two_part(text.encode("utf-8", "replace"))],
    lambda text, codec: [prologue(), encode_two_part(json.dumps(text).encode())],
    lambda text, codec: [prologue(), encode_two_part(b"", text.encode("utf-8", "replace"))],
    lambda text, codec: [prologue(), data_frame({"event": "error", "comment": [text]}, codec)],
    lambda text, codec: [prologue(), data_frame({"data": {text: text}}, codec)],
    lambda text, codec: [
        prologue(),
        data_frame({"error": {"error_type": text, "message": text}, "event": text}, codec),
    ],
    lambda text, codec: [
        prologue(),
        data_frame({"data": {"token_ids": [7], "finish_reason": {"error": text}}}, codec),
    ],
    lambda text, codec: [
        prologue(),
        data_frame({"data": {"token_ids": [7], "finish_reason": text, "stop_reason": text}}, codec),
        final_frame(codec),
    ],
    lambda text, codec: [text.encode("utf-8", "replace")],
    lambda text, codec: [],
)


WELL: Frames = lambda text, codec: [  # noqa: E731 as those above
    prologue(),
    data_frame({"data": {"token_ids": [1], "finish_reason": "length"}}, codec),
    final_frame(codec),
]


class FalseWorker:
    """Acknowledges a request by `ack`, and if that is empty comes home with `frames`."""

    def __init__(self) -> None:
        self.ack = ""
        self.frames: Frames = lambda text, codec: []
        self.text = ""
        self.asked = 0

    async def on_message(self, message: Msg) -> None:
        request = decode_request_message(message.data)
        is_canary = len(request.body["token_ids"]) == 1
        self.asked += not is_canary
        ack = "" if is_canary else self.ack
        await message.respond(ack.encode("utf-8", "replace"))
        if ack:
            return
        host, _, port = request.call_home.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(handshake(request.call_home.subject))
        frames = WELL if is_canary else self.frames
        for frame in frames(self.text, request.codec):
            writer.write(frame)
        writer.close()


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_a_worker_over_nats_says_nothing_of_its_own_in_the_log(
    log_format: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedNats(free_port()))
        environ = {"DYN_FILE_KV": str(tmp_path / "kv")}
        store = open_store("file", environ)
        stack.push_async_callback(store.close)
        card = ModelCard("tiny", 64, context_length=4096)
        for bucket, key, value in (
            encode_card(card, NAME, 5),
            (*Instance(NAME, 5, "nats_tcp", SUBJECT, "json").key("today"),
             Instance(NAME, 5, "nats_tcp", SUBJECT, "json").value()),
        ):  # fmt: skip
            await store.bucket(bucket).put(key, value)
        worker = FalseWorker()
        client = await nats.connect(server.url)
        stack.push_async_callback(client.close)
        await client.subscribe(SUBJECT, cb=worker.on_message)
        await client.flush()

        ports = [free_port() for _ in range(2)]
        words = ["serve", "--discovery", "file", "--event-sources", "none", "--nats", server.url,
                 "--log-level", "debug", "--log-format", log_format, "--access-log",
                 "--port", str(ports[0]), "--http-port", str(ports[1])]  # fmt: skip
        router = await stack.enter_async_context(command(tmp_path, *words, environ=environ))
        await router.says("dynamo-router ready")
        http = f"127.0.0.1:{ports[1]}"
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}")
        )
        call = channel.unary_stream(f"/{SERVICE}/Generate", None, None)

        async def ready() -> bool:
            shown = await http_json(http, "/workers")
            return [each["state"] for each in shown["workers"]] == ["ready"]

        number = 0

        async def ask() -> None:
            nonlocal number
            await until(ready)
            number += 1
            try:
                await messages_of(call(prompt(f"r{number}", 20).SerializeToString()))
            except grpc.aio.AioRpcError as error:  # an odd reason for its end is not one
                text = error.details() or ""
                assert SECRET not in text and SUBJECT not in text, text

        texts = [text[:100_000] for text in TEXTS]
        for made in ACKS:
            for text in texts:
                worker.ack = made(text)
                await ask()
        worker.ack = ""
        for worker.frames in ANSWERS:
            for worker.text in texts:
                await ask()
        assert worker.asked >= len(texts) * (len(ACKS) + len(ANSWERS)) // 2
        await http_json(http, "/workers")
        check_log(router.text, log_format)
        page = await http_text(http, "/metrics")
        assert "\x1b" not in page and "boom" not in page and SECRET not in page
        shown = json.dumps(await http_json(http, "/workers"))
        assert SECRET not in shown
    assert FORGED.startswith("boom")
