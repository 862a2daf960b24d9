"""SGLang's own gRPC service (`python -m sglang.launch_server --grpc-mode`)."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict
from smg_grpc_proto.generated import sglang_scheduler_pb2  # type: ignore[import-untyped]

from ...base.errors import InvalidRequestError
from ..dialects import ServedModel, bias_of, leg_fields, refuse, sglang_facts
from ..engine_facts import EngineFacts
from ..trtllm_client import EngineIdentity
from .asked import GUIDES, Asked, copy_set, read_request, set_guide
from .client import TokenServiceClient, stated_ranks

_ENGINE = "SGLang's gRPC server"
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty",
)  # fmt: skip
_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "n": 1}
"""Of numbers that it takes for 0 where they are not there."""
_GUIDES = {
    GUIDES.GUIDE_TYPE_JSON: "json_schema",
    GUIDES.GUIDE_TYPE_JSON_SCHEMA: "json_schema",
    GUIDES.GUIDE_TYPE_REGEX: "regex",
    GUIDES.GUIDE_TYPE_EBNF_GRAMMAR: "ebnf_grammar",
    GUIDES.GUIDE_TYPE_STRUCTURAL_TAG: "structural_tag",
}
_LEG_FIELDS = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


class SglangClient(TokenServiceClient):
    """Its messages count the tokens of the answer so far."""

    dialect = "sglang"
    service = "sglang.grpc.scheduler.SglangScheduler"
    messages = sglang_scheduler_pb2
    counts_all = True

    def translate(self, request: bytes, dp_rank: int | None) -> tuple[Asked, bytes]:
        asked = read_request(request, _ENGINE)
        return asked, asked.encode(sglang_request(asked, request, dp_rank))

    async def ask_facts(self, timeout: float) -> tuple[EngineIdentity, EngineFacts]:
        asked = [self.ask_if_known(m, timeout) for m in ("GetModelInfo", "GetServerInfo")]
        model, server = await asyncio.gather(*asked)
        args = _arguments(server.server_args)
        identity = EngineIdentity(dp_size=stated_ranks(args.get("dp_size")))
        return identity, facts_by(model, server, args, self.host, self.block_size)

    def abort_request(self, request_id: str) -> Any:
        return sglang_scheduler_pb2.AbortRequest(request_id=request_id)


def sglang_request(asked: Asked, request: bytes, dp_rank: int | None) -> Any:
    """The fields of SGLang's GenerateRequest beside the id and the prompt."""
    message, sampling, output = (
        asked.message,
        asked.message.sampling_config,
        asked.message.output_config,
    )
    refuse(
        _ENGINE,
        {
            "a seed": sampling.HasField("seed"),
            "logprobs of the prompt": output.prompt_logprobs > 0,
        },
    )
    found = sglang_scheduler_pb2.GenerateRequest(stream=message.streaming)
    params = found.sampling_params
    for name, value in _NEUTRAL.items():
        setattr(params, name, value)
    copy_set(sampling, params, _SAMPLING)
    if not params.top_k:  # all tokens count
        params.top_k = -1
    params.max_new_tokens = asked.max_tokens
    params.min_new_tokens = sampling.min_tokens
    params.stop.extend(message.stop)
    params.stop_token_ids.extend(message.stop_token_ids)
    params.skip_special_tokens = params.spaces_between_special_tokens = True
    params.ignore_eos = message.ignore_eos
    params.no_stop_trim = message.include_stop_token_in_output
    if output.logprobs > 0:
        found.return_logprob, found.top_logprobs_num = True, output.logprobs
        found.logprob_start_len = -1  # of none of the prompt
    if message.embedding_bias:
        bias = bias_of(request)
        params.logit_bias.update({str(token): value for token, value in bias.items()})
    set_guide(message, params, _ENGINE, _GUIDES, '{"type": "object"}')
    try:
        for name, value in leg_fields(message, _LEG_FIELDS, _ENGINE).items():
            setattr(found.disaggregated_params, name, value)
    except (TypeError, ValueError):
        raise InvalidRequestError(f"the prompt's handoff is none of {_ENGINE}") from None
    if dp_rank is not None:
        found.data_parallel_rank = dp_rank
    return found


def facts_by(
    model: Any, server: Any, args: dict[str, Any], host: str, block_size: int
) -> EngineFacts:
    """Of SGLang at `host`, by its answers to GetModelInfo and GetServerInfo, and the arguments in
    the latter. WorkerError if these cannot be read."""
    shown = {**args, "version": server.sglang_version}
    if server.max_total_num_tokens > 0:
        shown["max_total_num_tokens"] = server.max_total_num_tokens
    name = model.served_model_name or model.model_path
    served = ServedModel(id=name, owned_by="sglang", max_model_len=max(0, model.max_context_length))
    facts = sglang_facts(served, msgspec.json.encode(shown), host, block_size)
    return replace(
        facts,
        max_input_len=max(0, model.max_req_input_len),
        vocab_size=max(0, model.vocab_size),
    )


def _arguments(stated: Any) -> dict[str, Any]:
    """Those of its command line, without those that JSON has no number for."""
    args: dict[str, Any] = {}
    for name, field in stated.fields.items():
        with suppress(ValueError):
            value: Any = MessageToDict(field)
            integral = isinstance(value, float) and value.is_integer()
            args[name] = int(value) if integral else value
    return args
