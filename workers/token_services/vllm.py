"""vLLM's own gRPC service (`vllm serve MODEL --grpc`)."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
from smg_grpc_proto.generated import vllm_engine_pb2  # type: ignore[import-untyped]

from ..dialects import bias_of, leg_fields
from ..engine_facts import EngineFacts, facts_of
from ..transfer_facts import MOONCAKE, NIXL, NIXL_PUSH, NONE, TransferFacts
from ..trtllm_client import EngineIdentity
from ..trtllm_proto import pb
from .asked import GUIDES, Asked, copy_set, read_request, set_guide
from .client import TokenServiceClient, stated_features, stated_ranks

_ENGINE = "vLLM's gRPC server"
_SAMPLING = (
    "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip
_GUIDES = {
    GUIDES.GUIDE_TYPE_JSON: "json_object",
    GUIDES.GUIDE_TYPE_JSON_SCHEMA: "json_schema",
    GUIDES.GUIDE_TYPE_REGEX: "regex",
    GUIDES.GUIDE_TYPE_EBNF_GRAMMAR: "grammar",
    GUIDES.GUIDE_TYPE_STRUCTURAL_TAG: "structural_tag",
}
_LEG_FIELDS = ("kv_transfer_params",)
_CONNECTORS = {
    "": NONE,
    "NixlConnector": NIXL,
    "NixlPushConnector": NIXL_PUSH,
    "MooncakeConnector": MOONCAKE,
}
_PORTS = {NIXL_PUSH: 5600, MOONCAKE: 8998}
"""Of a side channel or bootstrap server, where the worker's URL has none."""
_ROLES = {"kv_producer": "prefill", "kv_consumer": "decode"}
_SEEDS = 1 << 31


class VllmClient(TokenServiceClient):
    """Its stream's messages have the tokens that are new."""

    dialect = "vllm"
    service = "vllm.grpc.engine.VllmEngine"
    messages = vllm_engine_pb2
    counts_all = False

    def translate(self, request: bytes, dp_rank: int | None) -> tuple[Asked, bytes]:
        asked = read_request(request, _ENGINE)
        return asked, asked.encode(vllm_request(asked, request, dp_rank))

    async def ask_facts(self, timeout: float) -> tuple[EngineIdentity, EngineFacts]:
        methods = "GetModelInfo", "GetServerInfo", "GetLoads"
        asked = [self.ask_if_known(method, timeout) for method in methods]
        model, server, loads = await asyncio.gather(*asked)
        identity = EngineIdentity(dp_size=stated_ranks(server.data_parallel_size))
        return identity, vllm_facts(model, server, loads, self.host, self.block_size)

    def abort_request(self, request_id: str) -> Any:
        return vllm_engine_pb2.AbortRequest(request_ids=[request_id])


def vllm_request(asked: Asked, request: bytes, dp_rank: int | None) -> Any:
    """The fields of vLLM's GenerateRequest beside the id and the prompt."""
    message, sampling, output = (
        asked.message,
        asked.message.sampling_config,
        asked.message.output_config,
    )
    found = vllm_engine_pb2.GenerateRequest(stream=message.streaming)
    params = found.sampling_params
    copy_set(sampling, params, _SAMPLING)
    if sampling.top_k > 0:  # else all tokens count
        params.top_k = sampling.top_k
    if sampling.HasField("seed"):
        params.seed = sampling.seed % _SEEDS
    params.max_tokens = asked.max_tokens
    params.min_tokens = sampling.min_tokens
    params.stop.extend(message.stop)
    params.stop_token_ids.extend(message.stop_token_ids)
    if message.stop:  # it looks for them in the text that its HTTP server would send
        params.skip_special_tokens = params.spaces_between_special_tokens = True
    params.ignore_eos = message.ignore_eos
    params.include_stop_str_in_output = message.include_stop_token_in_output
    if output.logprobs > 0:
        params.logprobs = output.logprobs
    if output.prompt_logprobs > 0:
        params.prompt_logprobs = output.prompt_logprobs
    if message.embedding_bias:
        params.logit_bias.update(bias_of(request))
    set_guide(message, params, _ENGINE, _GUIDES, True)
    fields = leg_fields(message, _LEG_FIELDS, _ENGINE)
    if fields:
        found.kv_transfer_params_json = msgspec.json.encode(fields["kv_transfer_params"]).decode()
    if dp_rank is not None:
        found.data_parallel_rank = dp_rank
    return found


def vllm_facts(model: Any, server: Any, loads: Any, host: str, block_size: int) -> EngineFacts:
    """Of vLLM at `host`, by its answers to GetModelInfo, GetServerInfo and GetLoads."""
    tokens = max((each.max_total_num_tokens for each in loads.loads), default=0)
    settings = {"total_kv_blocks": tokens // block_size, "max_num_seqs": server.max_num_seqs}
    facts = facts_of(
        pb.GetModelInfoResponse(
            model_id=model.served_model_name or model.model_path,
            max_input_len=max(0, model.max_req_input_len),
            max_seq_len=min(model.max_context_length, _SEEDS - 1),
            vocab_size=min(model.vocab_size, _SEEDS - 1),
            supported_features=stated_features(settings.items()),
        ),
        pb.GetServerInfoResponse(version=loads.version, backend="vllm"),
    )
    stated: str = server.kv_connector
    connector = _CONNECTORS.get(stated, stated)
    ranks, engine_id = stated_ranks(server.data_parallel_size) or 1, server.kv_engine_id
    ids: tuple[str, ...] = (engine_id,) if engine_id else ()
    if engine_id and ranks > 1:
        ids = tuple(f"{engine_id}_dp{rank}" for rank in range(ranks))
    transfer = TransferFacts(
        connector=connector,
        role=_ROLES.get(server.kv_role, ""),
        host=host,
        port=_PORTS.get(connector, 0),
        engine_ids=ids,
        block_size=max(0, server.block_size),
        cache_type=" of ".join(filter(None, (server.kv_cache_dtype, server.model_dtype))),
        pairing=server.pairing_protocol,
    )
    return replace(facts, transfer=transfer)
