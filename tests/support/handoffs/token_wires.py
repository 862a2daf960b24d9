"""Fakes of engines with gRPC services of their own, as wires of the contract."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
from support.engines.token_services import (
    OpenEngineService,
    SglangService,
    TokenService,
    VllmService,
    open_last,
    open_part,
    refused,
    sglang_last,
    sglang_part,
    vllm_last,
    vllm_part,
)
from support.handoffs.fabric import CACHED, Died, EngineFault, Leg
from support.handoffs.wire import ENGINE, MooncakeKeys, NixlKeys, NixlPushKeys, Wire, handed_over
from support.servers.http_engine import HttpEngine, reply

from dynamo_router.workers.health import HealthMonitor
from dynamo_router.workers.token_services.proto import openengine_pb2


class TokenWire(Wire):
    """The parts that differ are those of `made`, `read` and `parts`."""

    query = ""

    def made(self) -> TokenService:
        raise NotImplementedError

    def read(self, request: Any) -> Leg:
        raise NotImplementedError

    def part(self, tokens: list[int], all_tokens: list[int]) -> Any:
        raise NotImplementedError

    def last(
        self, request: Any, tokens: list[int], all_tokens: list[int], reason: str, key: str
    ) -> Any:
        raise NotImplementedError

    async def enter(self, stack: AsyncExitStack) -> None:
        self.engine = await stack.enter_async_context(self.made())

    def attach(self, monitor: HealthMonitor) -> None:
        monitor.add(self.engine.url + self.query)

    async def _script(self, engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        self.bodies.append(request)
        tokens: list[int] = []
        try:
            async for new, reason, key in self.legs.run(self.read(request)):
                tokens += new
                if request.stream:
                    yield self.part(new, tokens)
                if reason:
                    yield self.last(request, new, tokens, reason, key)
        except EngineFault as fault:
            await refused(context, fault.status, str(fault))
        except Died:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


class VllmGrpcWire(NixlKeys, TokenWire):
    """vLLM with a NixlConnector, which it states."""

    connector = "NixlConnector"

    def made(self) -> TokenService:
        engine = VllmService(self._script)
        engine.info.kv_connector, engine.info.kv_role = self.connector, "kv_both"
        engine.info.kv_engine_id = ENGINE
        return engine

    def read(self, request: Any) -> Leg:
        params = json.loads(request.kv_transfer_params_json or "{}")
        phase = "prefill" if params.get("do_remote_decode") else ""
        phase = "decode" if params.get("do_remote_prefill") else phase
        most = request.sampling_params.max_tokens
        if phase == "prefill":
            assert most == 1
        key = self.key(request.request_id, phase, params) if phase else ""
        return Leg(request.request_id, tuple(request.tokenized.input_ids), most, phase, key)

    def part(self, tokens: list[int], all_tokens: list[int]) -> Any:
        return vllm_part(tokens, CACHED)

    def last(
        self, request: Any, tokens: list[int], all_tokens: list[int], reason: str, key: str
    ) -> Any:
        handed = handed_over(key)
        said = tokens if request.stream else all_tokens
        return vllm_last(said, reason, CACHED, json.dumps(handed) if key else "")


class VllmGrpcPushWire(NixlPushKeys, VllmGrpcWire):
    """With a NixlPushConnector: both legs have the same request id."""

    shape, connector = "push", "NixlPushConnector"
    query = "?tp=2&pp=1"

    def last(
        self, request: Any, tokens: list[int], all_tokens: list[int], reason: str, key: str
    ) -> Any:
        return vllm_last(tokens if request.stream else all_tokens, reason, CACHED)


class VllmGrpcMooncakeWire(MooncakeKeys, VllmGrpcPushWire):
    """With a MooncakeConnector, whose bootstrap server has the engine's id."""

    shape, connector = "rendezvous", "MooncakeConnector"

    async def enter(self, stack: AsyncExitStack) -> None:
        await super().enter(stack)
        ranks = reply(json.dumps({"0": {"engine_id": ENGINE, "worker_addr": {}}}).encode())
        bootstrap = await stack.enter_async_context(HttpEngine({"/query": ranks}))
        self.query = f"?handoff=mooncake&handoff_port={bootstrap.port}"


class SglangGrpcWire(TokenWire):
    """SGLang: the same fields in both, with a room that is an int32."""

    shape = "rendezvous"
    runs_whole = False

    def made(self) -> TokenService:
        engine = SglangService(self._script)
        mode = {"disaggregation_mode": self.role or "null", "disaggregation_bootstrap_port": 8998}
        engine.info.server_args.update(mode)
        return engine

    def read(self, request: Any) -> Leg:
        prompt, most = tuple(request.tokenized.input_ids), request.sampling_params.max_new_tokens
        if not self.role:
            assert not request.HasField("disaggregated_params")
            return Leg(request.request_id, prompt, most)
        host, port, number = (value for _, value in request.disaggregated_params.ListFields())
        assert (host, port) == ("127.0.0.1", 8998) and 0 < number < 2**31
        return Leg(request.request_id, prompt, most, self.role, str(number))

    def part(self, tokens: list[int], all_tokens: list[int]) -> Any:
        return sglang_part(tokens, len(all_tokens), CACHED)

    def last(
        self, request: Any, tokens: list[int], all_tokens: list[int], reason: str, key: str
    ) -> Any:
        said = tokens if request.stream else all_tokens
        return sglang_last(said, len(all_tokens), reason, CACHED)


class OpenEngineWire(TokenWire):
    """TensorRT-LLM with OpenEngine's services: a session, which is kept until it was read."""

    runs_whole = False
    lease_s = float("inf")
    sends_finish = True
    """after a prefill's session"""

    def made(self) -> TokenService:
        engine = OpenEngineService(self._script)
        engine.info.engine_role = {"prefill": 2, "decode": 3}.get(self.role, 1)
        return engine

    def read(self, request: Any) -> Leg:
        phases = {"context_only": "prefill", "generation_only": "decode"}
        kind = request.extra.fields.get("request_type")
        phase = "" if kind is None else phases[kind.string_value]
        assert phase == self.role
        if phase == "decode":
            attributes = request.kv.session.attributes_struct
            assert (attributes["ctx_dp_rank"], attributes["opaque_state"]) == (0, "AAAA")
        key = request.kv.session.session_id
        prompt, most = tuple(request.token_ids.ids), request.stopping.max_tokens
        return Leg(request.request_id, prompt, most, phase, key)

    async def _script(self, engine: TokenService, request: Any, context: Any) -> AsyncIterator[Any]:
        self.bodies.append(request)
        try:
            async for new, reason, key in self.legs.run(self.read(request)):
                if key:
                    found = openengine_pb2.GenerateResponse()
                    session = found.prefill_ready.kv_session
                    session.session_id = key
                    session.endpoints.add(host="127.0.0.1")
                    session.attributes_struct.update(
                        {
                            "ctx_info_endpoint": "tcp://127.0.0.1:9000",
                            "opaque_state": "AAAA",
                            "ctx_dp_rank": 0,
                            "first_gen_tokens": new,
                        }
                    )
                    found.usage.cached_prompt_tokens = CACHED
                    yield found
                elif new:
                    yield open_part(*new)
                if reason and (self.sends_finish or not key):
                    yield open_last(1 if reason == "stop" else 2, CACHED)
        except EngineFault as fault:
            found = openengine_pb2.GenerateResponse()
            found.error.code = 1 if fault.status == 400 else 5
            found.error.message = str(fault)
            yield found
        except Died:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


class OpenEngineWithoutFinishWire(OpenEngineWire):
    """Its prefill engines end with the session."""

    sends_finish = False
