"""How fakes of engines are called: each engine's own requests and answers, and what says who it is.

Written from the documentation of each engine, apart from the code that is tested.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
from support.fake_engine import FakeEngine, chunk, complete
from support.handoffs.fabric import CACHED, Died, EngineFault, Fabric, Leg
from support.handoffs.token_wires import (
    OpenEngineWire,
    OpenEngineWithoutFinishWire,
    SglangGrpcWire,
    VllmGrpcMooncakeWire,
    VllmGrpcPushWire,
    VllmGrpcWire,
)
from support.handoffs.wire import (
    ENGINE,
    PORT,
    MooncakeKeys,
    NixlKeys,
    NixlPushKeys,
    Wire,
    handed_over,
)
from support.servers.http_engine import Asked, HttpEngine, event, reply, stream_head

from dynamo_router.base.clock import SystemClock
from dynamo_router.runtime.request_planes import RequestClient, RequestServer, annotated
from dynamo_router.workers.dialects import DynamoClient, with_handoff
from dynamo_router.workers.dynamo_route import DynamoRoute
from dynamo_router.workers.engine_facts import EngineFacts
from dynamo_router.workers.health import HealthMonitor
from dynamo_router.workers.transfer_facts import BOOTSTRAP, NIXL_PUSH, TransferFacts
from dynamo_router.workers.trtllm_proto import pb
from dynamo_router.workers.worker_url import WorkerUrl


class GrpcWire(Wire):
    """Mock engines, and what else speaks TensorRT-LLM's protocol with a parcel beside it."""

    async def enter(self, stack: AsyncExitStack) -> None:
        self.engine = await stack.enter_async_context(FakeEngine(self._script))
        self.engine.model.max_input_len = 4096

    def attach(self, monitor: HealthMonitor) -> None:
        monitor.add(self.engine.url)

    async def _script(self, engine: FakeEngine, request: Any, context: Any) -> AsyncIterator[Any]:
        self.bodies.append(request)
        params, prompt = request.disaggregated_params, tuple(request.tokenized.input_token_ids)
        phase = ("", "prefill", "decode")[params.request_type]
        key = params.context_phase_params.kv_cache_blocks.decode()
        leg = Leg(request.request_id, prompt, request.max_tokens, phase, key)
        tokens: list[int] = []
        try:
            async for new, reason, handed in self.legs.run(leg):
                tokens += new
                if new and request.streaming:
                    part = chunk(request, *new)
                    part.chunk.cached_tokens = CACHED
                    yield part
                if reason:
                    last = complete(request, *tokens)
                    last.complete.finish_reason = reason
                    last.complete.cached_tokens = CACHED
                    body = last.SerializeToString()
                    more = with_handoff(body, handed.encode()) if handed else body
                    yield pb.GenerateResponse.FromString(more)
        except EngineFault as fault:
            code = "INVALID_ARGUMENT" if fault.status == 400 else "UNAVAILABLE"
            await context.abort(grpc.StatusCode[code], str(fault))
        except Died:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


class HttpWire(Wire):
    """An engine over HTTP. The parts that differ are those of `read`, `whole` and `part`."""

    owner, path, query = "vllm", "/v1/completions", ""
    pages: dict[str, Any] = {}

    async def enter(self, stack: AsyncExitStack) -> None:
        models = {"data": [{"id": "tiny", "owned_by": self.owner, "max_model_len": 4096}]}
        pages = {"/v1/models": models, **self.described()}
        answers: dict[str, Any] = {
            path: reply(json.dumps(page).encode()) for path, page in pages.items()
        }
        answers[self.path] = self._serve
        self.engine = await stack.enter_async_context(HttpEngine(answers))

    def described(self) -> dict[str, Any]:
        return {}

    def attach(self, monitor: HealthMonitor) -> None:
        monitor.add(self.engine.url + self.query)

    def read(self, asked: Asked) -> Leg:
        raise NotImplementedError

    def part(self, tokens: list[int], all_tokens: list[int], reason: str, key: str) -> Any:
        raise NotImplementedError

    async def _serve(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        self.bodies.append(asked.body)
        leg, tokens, last = self.read(asked), [], None
        streaming = asked.body["stream"]
        try:
            if streaming and leg.phase != "prefill":
                begun = False
                async for new, reason, key in self.legs.run(leg):
                    if not begun:
                        writer.write(stream_head())
                        begun = True
                    tokens += new
                    writer.write(event(self.part(new, tokens, reason, key)))
                    await writer.drain()
                writer.write(event(b"[DONE]"))
                return
            async for new, reason, key in self.legs.run(leg):
                tokens += new
                last = self.part(tokens, tokens, reason, key)
            writer.write(reply(b"" if last is None else json.dumps(last).encode()))
        except EngineFault as fault:
            body = json.dumps({"error": {"message": str(fault)}}).encode()
            writer.write(reply(body, status=fault.status))
        except Died:
            writer.transport.abort()


class VllmWire(NixlKeys, HttpWire):
    """vLLM with a NixlConnector."""

    def described(self) -> dict[str, Any]:
        return {"/version": {"version": "0.13.0"}}

    def read(self, asked: Asked) -> Leg:
        body, params = asked.body, asked.body.get("kv_transfer_params") or {}
        request_id = asked.headers.get("x-request-id", "?")
        phase = "prefill" if params.get("do_remote_decode") else ""
        phase = "decode" if params.get("do_remote_prefill") else phase
        if phase == "prefill":
            assert (body["max_tokens"], body["stream"]) == (1, False)
        key = self.key(request_id, phase, params) if phase else ""
        return Leg(request_id, tuple(body["prompt"]), body["max_tokens"], phase, key)

    def part(self, tokens: list[int], all_tokens: list[int], reason: str, key: str) -> Any:
        choice = {"index": 0, "text": "x", "token_ids": tokens, "finish_reason": reason or None}
        usage = {"prompt_tokens_details": {"cached_tokens": CACHED}}
        found: dict[str, Any] = {"choices": [choice], "usage": usage}
        if key:
            found["kv_transfer_params"] = handed_over(key)
        return found


class NixlPushWire(NixlPushKeys, VllmWire):
    """vLLM with a NixlPushConnector: both legs have the same request id."""

    shape = "push"
    query = f"?handoff=nixl_push&engine_id={ENGINE}&handoff_port={PORT}&tp=2&pp=1"


class MooncakeWire(MooncakeKeys, VllmWire):
    """vLLM with a MooncakeConnector: a bootstrap server of its own has its engine's id."""

    shape = "rendezvous"

    async def enter(self, stack: AsyncExitStack) -> None:
        await super().enter(stack)
        ranks = reply(json.dumps({"0": {"engine_id": ENGINE, "worker_addr": {}}}).encode())
        self.bootstrap = await stack.enter_async_context(HttpEngine({"/query": ranks}))
        self.query = f"?handoff=mooncake&handoff_port={self.bootstrap.port}"


class SglangWire(HttpWire):
    """SGLang: the same body to both, and a room."""

    shape, owner, path = "rendezvous", "sglang", "/generate"
    runs_whole = False

    def described(self) -> dict[str, Any]:
        mode = self.role or "null"
        return {
            "/server_info": {
                "version": "0.5.9",
                "disaggregation_mode": mode,
                "disaggregation_bootstrap_port": 8998,
                "page_size": 16,
                "tp_size": 1,
                "max_total_num_tokens": 65536,
            }
        }

    def read(self, asked: Asked) -> Leg:
        body = asked.body
        most = body["sampling_params"]["max_new_tokens"]
        if not self.role:
            assert "bootstrap_room" not in body
            return Leg(body["rid"], tuple(body["input_ids"]), most)
        assert (body["bootstrap_host"], body["bootstrap_port"]) == ("127.0.0.1", 8998)
        assert 0 < body["bootstrap_room"] < 2**63
        key = str(body["bootstrap_room"])
        return Leg(body["rid"], tuple(body["input_ids"]), most, self.role, key)

    def part(self, tokens: list[int], all_tokens: list[int], reason: str, key: str) -> Any:
        ended = {"type": reason, "message": "KV transfer failed"} if reason else None
        meta = {
            "id": "x",
            "finish_reason": ended,
            "completion_tokens": len(all_tokens),
            "cached_tokens": CACHED,
        }
        return {"text": "x" * len(all_tokens), "output_ids": all_tokens, "meta_info": meta}


class TrtllmServeWire(HttpWire):
    """trtllm-serve: refuses unknown fields, and answers with ids where it does not detokenize."""

    owner = "tensorrt_llm"

    def read(self, asked: Asked) -> Leg:
        body = asked.body
        known = {"prompt", "model", "stream", "max_tokens", "detokenize", "disaggregated_params"}
        assert body.keys() <= known | {"stream_options"} and body["detokenize"] is False
        params = body.get("disaggregated_params")
        phases = {"context_only": "prefill", "generation_only": "decode"}
        phase = "" if params is None else phases[params["request_type"]]
        if params is not None:
            assert params["disagg_request_id"] >= 1 << 42
        if phase == "decode":
            assert params["ctx_usage"]["prompt_tokens"] == len(body["prompt"])
            assert params["opaque_state"] == "AAAA" and params["first_gen_tokens"]
        key = "" if params is None else str(params["disagg_request_id"])
        request_id = asked.headers.get("x-request-id", "?")
        return Leg(request_id, tuple(body["prompt"]), body["max_tokens"], phase, key)

    def part(self, tokens: list[int], all_tokens: list[int], reason: str, key: str) -> Any:
        choice: dict[str, Any] = {
            "index": 0,
            "text": "",
            "token_ids": tokens,
            "finish_reason": reason or None,
        }
        if key:
            choice["disaggregated_params"] = {
                "request_type": "context_only",
                "first_gen_tokens": tokens,
                "ctx_request_id": 77,
                "opaque_state": "AAAA",
                "disagg_request_id": int(key),
                "ctx_info_endpoint": "tcp://127.0.0.1:9000",
            }
        usage = {
            "prompt_tokens": len(self.bodies[-1]["prompt"]),
            "completion_tokens": len(all_tokens),
            "total_tokens": len(self.bodies[-1]["prompt"]) + len(all_tokens),
            "prompt_tokens_details": {"cached_tokens": CACHED},
        }
        return {"choices": [choice], "usage": usage}


class DynamoWire(Wire):
    """A worker of Dynamo's over its request plane, with the facts of its card."""

    numbers = {"prefill": 101, "decode": 102, "": 103}

    async def enter(self, stack: AsyncExitStack) -> None:
        self.server, self.plane = RequestServer(), RequestClient()
        await self.server.start()
        await self.plane.start()
        stack.push_async_callback(self.server.close)
        stack.push_async_callback(self.plane.close)
        self.server.add("generate", self._generate)

    def transfer(self) -> TransferFacts:
        return TransferFacts(role=self.role)

    def attach(self, monitor: HealthMonitor) -> None:
        number = self.numbers[self.role] + 10 * sum(1 for _ in monitor.engines)
        address = f"127.0.0.1:{self.server.port}/generate"
        facts = EngineFacts(model_id="tiny", transfer=self.transfer())
        route = DynamoRoute("tcp", address, "msgpack", number, facts)
        client = DynamoClient(route, self.plane, SystemClock())
        monitor.add(WorkerUrl(address, number), client=client)

    def read(self, body: Any, request_id: str) -> Leg:
        given = body.get("prefill_result")
        phase = "prefill" if self.role == "prefill" else "decode" if given else ""
        key = "" if given is None else given["disaggregated_params"]["kv_transfer_params"]["key"]
        return self._leg(body, request_id, phase, key)

    def _leg(self, body: Any, request_id: str, phase: str, key: str) -> Leg:
        most = body["stop_conditions"]["max_tokens"]
        return Leg(request_id, tuple(body["token_ids"]), most, phase, key)

    async def _generate(self, body: Any, context: Any) -> AsyncIterator[object]:
        if len(body["token_ids"]) == 1:  # a canary
            yield annotated({"token_ids": [1], "finish_reason": "length"})
            return
        self.bodies.append(body)
        try:
            async for tokens, reason, key in self.legs.run(self.read(body, context.id)):
                usage = {"prompt_tokens_details": {"cached_tokens": CACHED}}
                part: dict[str, Any] = {"token_ids": tokens, "completion_usage": usage}
                if reason:
                    part["finish_reason"] = reason
                if key and self.shape == "relay":
                    part["disaggregated_params"] = {"kv_transfer_params": {"key": key}}
                yield annotated(part)
        except EngineFault as fault:
            raise RuntimeError(str(fault)) from fault
        except Died as error:
            raise asyncio.CancelledError from error


class DynamoBootstrapWire(DynamoWire):
    """One that publishes a bootstrap server, as SGLang behind Dynamo does."""

    shape = "rendezvous"
    runs_whole = False

    def transfer(self) -> TransferFacts:
        if self.role != "prefill":
            return TransferFacts(role=self.role)
        return TransferFacts(connector=BOOTSTRAP, role=self.role, host="127.0.0.1", port=8998)

    def read(self, body: Any, request_id: str) -> Leg:
        if not self.role:
            return self._leg(body, request_id, "", "")
        server = body["bootstrap_info"]
        assert server.keys() == {"bootstrap_host", "bootstrap_port", "bootstrap_room"}
        assert ("handoff_id" in body) == (self.role == "decode")
        return self._leg(body, request_id, self.role, str(server["bootstrap_room"]))


class DynamoPushWire(DynamoWire):
    """One that publishes where it may be written from, as vLLM's NixlPushConnector."""

    shape = "push"

    def transfer(self) -> TransferFacts:
        if self.role != "prefill":
            return TransferFacts(role=self.role)
        ids = (ENGINE,)
        return TransferFacts(
            connector=NIXL_PUSH, role=self.role, host="127.0.0.1", port=PORT, engine_ids=ids
        )

    def read(self, body: Any, request_id: str) -> Leg:
        given = body.get("prefill_result")
        if given is not None:
            params = given["disaggregated_params"]["kv_transfer_params"]
            assert (params["remote_engine_id"], params["remote_port"]) == (ENGINE, PORT)
        phase = "prefill" if self.role == "prefill" else "decode" if given else ""
        return self._leg(body, request_id, phase, request_id if phase else "")


WIRES: dict[str, Callable[[Fabric, str], Wire]] = {
    "mock": GrpcWire,
    "vllm-nixl": VllmWire,
    "vllm-nixl-push": NixlPushWire,
    "vllm-mooncake": MooncakeWire,
    "sglang": SglangWire,
    "trtllm-serve": TrtllmServeWire,
    "vllm-grpc-nixl": VllmGrpcWire,
    "vllm-grpc-nixl-push": VllmGrpcPushWire,
    "vllm-grpc-mooncake": VllmGrpcMooncakeWire,
    "sglang-grpc": SglangGrpcWire,
    "openengine": OpenEngineWire,
    "openengine-session-last": OpenEngineWithoutFinishWire,
    "dynamo": DynamoWire,
    "dynamo-bootstrap": DynamoBootstrapWire,
    "dynamo-push": DynamoPushWire,
}
