"""What a router's log says of hostile peers behind every other carrier than a client's and an
engine's call: NATS, its server, JetStream, stores, ZMQ, Kubernetes, Envoy, a trace collector.

See test_log_hygiene.py. One line for each thing that happened, no line of theirs, no stack. Each
carrier has one of the two formats: which carrier a text came by is nothing that a format sees, and
that each of them holds is shown there and by the unit tests of logs.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec
import nats
import pytest
from support.adversity.false_nats import FalseNats
from support.adversity.log_hygiene import FORGED, SECRET, TEXTS, check_log
from support.epp.engine import Engine
from support.epp.messages import HEAD, body, request_headers
from support.fake_engine import FakeEngine
from support.free_port import free_port
from support.polling import until
from support.processes import Command, command, http_json, http_text
from support.security.certificates import Authority
from support.servers.discovered_fleet import backend_of
from support.servers.kubernetes.api_server import NAMESPACE, KubernetesServer
from support.servers.kubernetes.pods import LABELS, METADATA, add_pod, set_ready

from dynamo_router.runtime.event_planes import KV_EVENTS as KV
from dynamo_router.runtime.event_planes import EmbeddedNats, endpoint_subject
from dynamo_router.runtime.kv_stores import open_store

FORMATS = ("text", "json")


class Router:
    """A router's process, and where its pages are."""

    def __init__(self, process: Command, http: str) -> None:
        self.process, self.http = process, http

    async def settled(self) -> str:
        """Its log once it answers and has nothing more to say than that it did."""
        lines, same = 0, 0
        while same < 3:
            await http_json(self.http, "/workers")
            await asyncio.sleep(0.1)
            before = lines
            lines = sum("/workers" not in line for line in self.process.text.splitlines())
            same = same + 1 if lines == before else 0
        return self.process.text

    async def check(self, log_format: str) -> None:
        check_log(await self.settled(), log_format)
        page = await http_text(self.http, "/metrics")
        assert "\x1b" not in page and "boom" not in page and SECRET not in page


@asynccontextmanager
async def routing(
    folder: Path, log_format: str, *words: str, kind: str = "serve", **environ: str
) -> AsyncIterator[Router]:
    http = free_port()
    flags = ["--log-level", "debug", "--log-format", log_format]
    flags += [] if kind == "epp" else ["--port", "0"] if kind == "serve" else ["--http-port", "0"]
    flags += ["--admin-port" if kind == "frontend" else "--http-port", str(http)]
    async with command(folder, kind, *flags, *words, environ=environ) as process:
        await process.says("dynamo-router ready")
        yield Router(process, f"127.0.0.1:{http}")


INFOS: tuple[dict[str, Any], ...] = (
    {"server_id": FORGED, "version": FORGED, "server_name": FORGED},
    {"connect_urls": [f"user:{SECRET}@127.0.0.1:1", FORGED, "x" * 100_000]},
    {"version": "x" * 900_000, "cluster": FORGED},
    {"max_payload": -1, "proto": "x", "headers": FORGED},
    {"nonce": FORGED, "auth_required": True, "tls_required": FORGED},
    {"max_payload": 1 << 70},
)


async def test_a_nats_server_says_nothing_of_its_own_in_the_log(tmp_path: Path) -> None:
    async with FalseNats() as false:
        url = f"nats://user:{SECRET}@{false.address}"
        async with routing(tmp_path, "text", "--nats", url, "--router-replica-sync") as router:

            async def again() -> None:
                before = false.connections
                false.cut()
                await until(lambda: false.connections > before)

            for info in INFOS:
                false.info = info
                await again()
            false.info = {}
            for raw in (
                b"[]",
                b"{}",
                FORGED.replace("\r\n", "").encode(),
                b"\xff" * 9,
                b"[" * 9999,
            ):
                false.raw_info = raw.replace(b"\r\n", b"")
                await again()
            false.raw_info = None
            for text in (FORGED, f"nats://user:{SECRET}@h {FORGED}", "x" * 1_000_000):
                false.error = text.replace("\r\n", " ").replace("'", "")
                await again()
            await router.check("text")


JETSTREAM: tuple[Callable[[str], object], ...] = (
    lambda text: {"error": {"code": 500, "err_code": 1, "description": text}},
    lambda text: {"error": {"code": text, "err_code": text, "description": [text]}},
    lambda text: {"error": text},
    lambda text: {"type": text, "config": {"name": text}, "state": text},
    lambda text: text.encode(),
    lambda text: [text],
)


MISSING = {"error": {"code": 404, "err_code": 10014, "description": "not found"}}
STREAM = {
    "config": {"name": "x", "subjects": [endpoint_subject("dynamo", "backend", "generate", KV)]},
    "created": "2026-01-01T00:00:00Z",
    "state": {"messages": 0, "bytes": 0, "first_seq": 1, "last_seq": 0, "consumer_count": 0},
}
CONSUMER = {
    "stream_name": "x", "name": "x", "config": {"ack_policy": "all"}, "created": "x",
    "delivered": {"consumer_seq": 0, "stream_seq": 0}, "num_pending": 0, "push_bound": False,
    "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
}  # fmt: skip


async def test_jetstream_says_nothing_of_its_own_in_the_log(tmp_path: Path) -> None:
    """After a start that it did not disturb."""
    async with FalseNats() as false:
        turn = 0
        hostile = False
        made = [(make, TEXTS[n % len(TEXTS)]) for n, make in enumerate(JETSTREAM)]

        def answer(subject: str) -> object:
            nonlocal turn
            if not hostile:
                if "STREAM.INFO.KV" in subject or "STREAM.INFO.OBJ" in subject:
                    return MISSING
                if "STREAM.INFO" in subject:
                    return STREAM
                return CONSUMER if "CONSUMER.CREATE" in subject else MISSING
            make, text = made[turn % len(made)]
            turn += 1
            return make(text)

        false.answer = answer
        url = f"nats://user:{SECRET}@{false.address}"
        words = ("--nats", url, "--durable-kv-events")
        async with routing(tmp_path, "json", *words) as router:
            hostile = True
            false.cut()
            await until(lambda: turn >= len(made), 60)
            await router.check("json")


@pytest.mark.parametrize(("log_format", "make"), list(zip(cycle(FORMATS), JETSTREAM)))
async def test_a_start_that_jetstream_prevents_is_one_line_more(
    log_format: str, make: Callable[[str], object], tmp_path: Path
) -> None:
    async with FalseNats() as false:
        false.answer = lambda subject: make(f"nats://user:{SECRET}@{FORGED}")
        words = ["serve", "--nats", f"nats://user:{SECRET}@{false.address}", "--port", "0"]
        words += ["--durable-kv-events", "--http-port", "0", "--log-format", log_format]
        async with command(tmp_path, *words) as process:
            assert await process.ended() == 1
            check_log(process.text, log_format)


SUBJECTS = (
    "kv-events",
    "kv_metrics",
    "kv-resync",
    "kv-heartbeat",
    "router-sync",
    "router-index",
    "active_sequences_events",
    "session_affinity_events",
)


def payloads(text: str) -> list[bytes]:
    """What a message may be that has this text wherever one goes."""
    names = ("id", "event", "worker_id", "publisher_id", "topic", "payload", "data", "request_id",
             "router_id", "kind", "type", "name", "error")  # fmt: skip
    record = dict.fromkeys(names, text)
    nested = {"event_id": text, "data": {"stored": {text: text}}, "worker": {text: text}}
    shapes: list[object] = [text, [text] * 3, record, [record], nested, [1, text, {text: text}]]
    made = [text.encode("utf-8", "replace")]
    for encode in (msgspec.json.encode, msgspec.msgpack.encode):
        made += [encode(shape) for shape in shapes]
    return made


async def test_messages_on_nats_say_nothing_of_their_own_in_the_log(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedNats(free_port()))
        engine = await stack.enter_async_context(FakeEngine(worker_id=7))
        words = ("--nats", server.url, "--router-replica-sync", "--worker", engine.url)
        router = await stack.enter_async_context(routing(tmp_path, "text", *words))
        client = await nats.connect(server.url)
        stack.push_async_callback(client.close)
        texts = [text[:10_000] for text in TEXTS]  # a server takes 1 MB at most
        for name in SUBJECTS:
            subject = endpoint_subject("dynamo", "backend", "generate", name)
            for text in texts:
                for data in payloads(text):
                    await client.publish(subject, data, reply="a.b", headers={"x": "y" + SECRET})
        await client.flush()
        await router.check("text")


RECORDS = (
    ("v1/instances", "dynamo/backend/generate/{}"),
    ("/services", "dynamo/backend/generate/{}"),
    ("v1/mdc", "dynamo/backend/generate/{}"),
    ("v1/mdc", "dynamo.backend.generate/{}"),
    ("v1/event_sources", "namespace/dynamo/component/backend/endpoint/generate/topic/kv-events/{}"),
    ("v1/event_channels", "namespace/dynamo/component/backend/endpoint/generate/topic/x/{}"),
)


def records(text: str) -> list[bytes]:
    """Values of a store's keys: what is no record, and records with this text in each field."""
    instance = {"type": "Endpoint", "component": "backend", "endpoint": "generate",
                "namespace": "dynamo", "instance_id": 5}  # fmt: skip
    card = {"display_name": text, "kv_cache_block_size": 16, "worker_type": text,
            "model_type": text, "model_input": text, "aliases": [text],
            "runtime_config": {"reasoning_parser": text, "tool_call_parser": text}}  # fmt: skip
    carriers = ("tcp", "nats_tcp", "trtllm_grpc", text)
    values: list[object] = [
        text,
        [text],
        {text: text},
        dict.fromkeys(("publisher_id", "metadata", "transport"), text),
        *({**instance, "transport": {carrier: text}} for carrier in carriers),
        {**instance, "instance_id": text, "transport": {text: text}},
        card,
        {"type": "ModelDeploymentCard", "card_json": card, "instance_id": 5},
        {"publisher_id": 5, "metadata": {"worker": {"worker_id": 5, text: text}}},
        {"publisher_id": 5, "metadata": {"worker": {"worker_id": 5, "dp_rank": 0},
                                         "recovery_target": {"transport": {text: text}}}},
    ]  # fmt: skip
    return [text.encode("utf-8", "replace"), *map(msgspec.json.encode, values)]


@pytest.mark.parametrize("command_name", ["serve", "frontend"])
@pytest.mark.parametrize(
    ("kind", "log_format"), [("file", "json"), ("etcd", "text"), ("nats", "json")]
)
async def test_records_of_stores_say_nothing_of_their_own_in_the_log(
    kind: str, log_format: str, command_name: str, tmp_path: Path
) -> None:
    """Among them names of workers and of models, and keys."""
    with backend_of(kind, tmp_path / "store") as backend:
        store = open_store(backend.kind, backend.environ)
        words = ("--discovery", kind, "--event-sources", "none")
        try:
            async with routing(
                tmp_path, log_format, *words, kind=command_name, **backend.environ
            ) as router:
                number = 0
                for bucket_name, key in RECORDS:
                    bucket = store.bucket(bucket_name)
                    for text in TEXTS:
                        for value in records(text[:20_000]):
                            number += 1
                            await bucket.put(key.format(f"{number:x}"), value)
                    odd = (
                        FORGED[:60],
                        f"nats://user:{SECRET}@h/a.b",
                        "\u202ex" * 9,
                    )
                    for name in odd if kind != "nats" else ():
                        await bucket.put(key.format(name), b"{}")
                await router.check(log_format)
        finally:
            await store.close()


async def test_an_engine_over_zmq_says_nothing_of_its_own_in_the_log(tmp_path: Path) -> None:
    from support.kv_events.zmq_publisher import ZmqPublisher

    async with ZmqPublisher() as publisher, FakeEngine(worker_id=7) as engine:
        url = f"{engine.url}?events={publisher.url}&replay={publisher.replay_url}"
        words = ("--worker", url, "--event-sources", "zmq", "--block-size", "16")
        texts = [text[:200_000] for text in TEXTS]
        for data in payloads(texts[0]):
            await publisher.publish_bytes(data)  # the replay has it
        async with routing(tmp_path, "json", *words) as router:
            await until(lambda: publisher.asked)
            for text in texts:
                for data in payloads(text):
                    await publisher.publish_bytes(data)
                    await publisher.send([text.encode("utf-8", "replace"), data])
                for event in (
                    ["BlockStored", [text], text, [1] * 16, 16, text, text],
                    ["BlockStored", [1], None, [1] * 16, 16, text, text],
                    {"type": text, "block_hashes": [text], "token_ids": text},
                    [text, text],
                ):
                    await publisher.publish(event)
                    await publisher.publish(["BlockStored", [1], None, [1] * 32, 32, None])
            await router.check("json")


async def test_a_collector_of_spans_says_nothing_of_its_own_in_the_log(tmp_path: Path) -> None:
    """Nor does what a client writes into the headers that spans have as attributes."""
    text = FORGED.replace("\x00", "")

    refused = asyncio.Event()

    async def refuse(request: Any, context: Any) -> Any:
        refused.set()
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"nats://user:{SECRET}@h {text}")

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(refuse)
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Export": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with FakeEngine(worker_id=7) as engine:
            words = ("--otel-endpoint", f"http://127.0.0.1:{port}", "--worker", engine.url)
            words += ("--no-kv-events", "--http-frontend", "0", "--access-log")
            async with routing(tmp_path, "text", *words) as router:
                ready = await router.process.says("dynamo-router ready")
                found = re.search(r"openai (\S+)", ready)
                assert found is not None
                asked = {"model": "fake", "prompt": [5], "max_tokens": 1, "user": text}
                for name in ("traceparent", "tracestate", "x-request-id", "x-tenant-id", "baggage"):
                    for value in ("x" * 5000, f"a=nats://u:{SECRET}@h", "00-\u202e"):
                        headers = {name: value.encode().decode("latin-1")}
                        await post(found[1], asked, headers)
                await asyncio.wait_for(refused.wait(), 60)
                await router.check("text")
    finally:
        await server.stop(None)


async def post(address: str, asked: object, headers: dict[str, str]) -> None:
    async with (
        aiohttp.ClientSession(f"http://{address}") as session,
        session.post("/v1/completions", json=asked, headers=headers) as answer,
    ):
        await answer.read()


ENVOY_HEADS = (
    *(":path", ":method", "x-request-id", "traceparent", "host", "content-length"),
    *("x-dynamo-session-id", FORGED),
)


async def test_envoy_says_nothing_of_its_own_in_the_log(tmp_path: Path) -> None:
    """Headers and bodies of its clients."""
    path = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
    sent: list[list[bytes]] = [[b"\xff" * 50], [body("response_body", b"x")]]
    for text in [text[:4000] for text in TEXTS]:
        bodies = [text.encode("utf-8", "replace")]
        for name in ("model", "prompt", "messages", "max_tokens", "nvext"):
            bodies.append(json.dumps({"model": "tiny", "prompt": "a", name: text}).encode())
        whole = [body("request_body", each, ends=True) for each in bodies]
        sent += [[request_headers(), each] for each in whole]
        for name in ENVOY_HEADS:
            sent.append([request_headers({**HEAD, name: text}, subset=text), whole[-1]])
    port = free_port()
    async with Engine() as engine:
        words = ("--endpoint", engine.address, "--no-kv-events", "--access-log")
        words += ("--grpc-port", str(port), "--no-secure-serving", "--grpc-health-port", "0")
        async with routing(tmp_path, "json", *words, kind="epp") as router:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

                async def ask(messages: list[bytes]) -> None:
                    call: Any = channel.stream_stream(path, None, None)(iter(messages))
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await call.read()
                    call.cancel()

                await asyncio.gather(*map(ask, sent))
            await router.check("json")


async def test_objects_of_kubernetes_say_nothing_of_their_own_in_the_log(tmp_path: Path) -> None:
    """Names and annotations of slices and of workers' metadata, and what the API server answers."""
    async with KubernetesServer(authority=Authority(tmp_path / "authority")) as server:
        environ = {"KUBECONFIG": str(server.kubeconfig(tmp_path, "first")),
                   "POD_NAMESPACE": NAMESPACE}  # fmt: skip
        words = ("--discovery", "kubernetes", "--no-kv-events")
        async with routing(tmp_path, "text", *words, **environ) as router:
            texts = [text[:50_000] for text in TEXTS]
            for number, text in enumerate(texts):
                pod = add_pod(server, f"worker-{number}")
                await set_ready(server, pod.name, text, name=f"s{number}", labels=LABELS)
                specs: list[Any] = [text, {"endpoints": text, "model_cards": [text]}]
                specs.append({"endpoints": {text: text}, "model_cards": {text: {"x": text}}})
                for place, spec in enumerate(specs):
                    metadata = {"name": f"worker-{number}" if place == 2 else f"{number}-{place}",
                                "annotations": {text: text}, "labels": LABELS}  # fmt: skip
                    made = {"apiVersion": METADATA.api_version, "kind": METADATA.kind,
                            "metadata": metadata, "spec": {"data": spec}}  # fmt: skip
                    server.objects.create(METADATA, NAMESPACE, made, "x")
                await server.changed()
            await router.check("text")
