"""OpenEngine, the gRPC services of several engines: TensorRT-LLM has them
(`trtllm-serve MODEL --grpc --grpc-protocol openengine`).

Its prefill engines keep a computed prompt until a decode engine has read it, without an end: see
HandoffPlan.must_read. A session names where it is; it goes to the decode engine as it came.
"""

import asyncio
from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from ...base.errors import InvalidRequestError, StatusCode, WorkerError
from ..channels import EventCall, Metadata
from ..dialects import (
    CONTEXT_ONLY,
    TokenLogprob,
    TrtllmAnswer,
    by_logprob,
    check_length,
    leg_fields,
    refuse,
    set_cached,
    with_handoff,
)
from ..engine_facts import EngineFacts, facts_of
from ..failures import EngineCallError, Origin
from ..transfer_facts import OPENENGINE, TransferFacts
from ..trtllm_client import EngineIdentity
from ..trtllm_proto import length_delimited, parts_of, pb
from .asked import GUIDES, Asked, copy_set, read_request, set_guide
from .client import TokenServiceClient, stated_features, stated_ranks
from .proto import openengine_pb2

_ENGINE = "OpenEngine"
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "seed",
)  # fmt: skip
_GUIDES = {
    GUIDES.GUIDE_TYPE_JSON: "json_schema",
    GUIDES.GUIDE_TYPE_JSON_SCHEMA: "json_schema",
    GUIDES.GUIDE_TYPE_REGEX: "regex",
    GUIDES.GUIDE_TYPE_EBNF_GRAMMAR: "ebnf_grammar",
    GUIDES.GUIDE_TYPE_STRUCTURAL_TAG: "structural_tag",
}
_RANK_KEY = "openengine-target-dp-rank"
_TOKENIZED, _IDS, _TOKEN_IDS, _TOKENS = 2, 2, 4, 1
"""Fields of the prompt and of its ids, here and there."""
_REASONS = {1: "stop", 2: "length", 3: "cancelled"}
_CODES = {
    "INVALID_ARGUMENT": StatusCode.INVALID_ARGUMENT,
    "UNSUPPORTED_FEATURE": StatusCode.INVALID_ARGUMENT,
    "OVERLOADED": StatusCode.RESOURCE_EXHAUSTED,
    "DRAINING": StatusCode.UNAVAILABLE,
    "CANCELLED": StatusCode.CANCELLED,
    "MODEL_NOT_FOUND": StatusCode.NOT_FOUND,
}
"""Of failures that are not INTERNAL."""
_WELL = (openengine_pb2.HEALTH_STATE_READY, openengine_pb2.HEALTH_STATE_DEGRADED)
_ROLES = {2: "prefill", 3: "decode"}
_MOST = (1 << 31) - 1
_PARCEL = ("kv_session", "host")


class OpenEngineClient(TokenServiceClient):
    """It has no embeddings, tokenizer, prefetch or emptying of caches; its KV events are others
    than ours, and are not asked for."""

    dialect = "openengine"
    service = "openengine.v1.Control"
    inference = "openengine.v1.Inference"
    messages: ClassVar[Any] = openengine_pb2
    counts_all = False
    _model: str = ""
    """as the engine calls it, once it was described"""

    def translate(self, request: bytes, dp_rank: int | None) -> tuple[Asked, bytes]:
        asked = read_request(request, _ENGINE, takes_salt=True)
        # Parsed and written again: so the ids are packed, however they came.
        tokens = [pb.TokenizedInput.FromString(p) for p in parts_of(asked.prompt, _TOKENIZED)]
        ids = b"".join(b"".join(parts_of(each.SerializeToString(), _IDS)) for each in tokens)
        prompt = length_delimited(_TOKEN_IDS, length_delimited(_TOKENS, ids))
        rest: bytes = open_engine_request(asked, self._model).SerializeToString()
        return asked, rest + prompt

    def address_rank(self, metadata: Metadata) -> tuple[int | None, Metadata]:
        rank, others = super().address_rank(metadata)
        return None, others if rank is None else (*others, (_RANK_KEY, str(rank)))

    def reader(self, asked: Asked) -> "OpenEngineReader":
        return OpenEngineReader(asked)

    def subscribe_kv_events(self, start: int) -> EventCall:
        raise _unknown("KV events that the index can read")

    async def embed(
        self, request: bytes, *, timeout: float | None = None, metadata: Metadata | None = None
    ) -> bytes:
        raise _unknown("embeddings")

    async def clear_kv_blocks(self, *, timeout: float) -> None:
        raise _unknown("the emptying of its cache")

    async def check_health(self, *, timeout: float) -> EngineIdentity:
        answer = await self.ask("Health", timeout)
        if answer.state not in _WELL:
            names = openengine_pb2.HealthState
            words = [f"{each.name}: {each.message}" for each in answer.checks if each.message]
            state = names.Name(answer.state) if answer.state in names.values() else answer.state
            raise WorkerError(f"engine's health check answers {state} {'; '.join(words)}".strip())
        return EngineIdentity()

    async def ask_facts(self, timeout: float) -> tuple[EngineIdentity, EngineFacts]:
        asked = [self.ask_if_known(m, timeout) for m in ("GetModelInfo", "GetServerInfo")]
        model, server = await asyncio.gather(*asked)
        self._model = model.served_model_name or model.model_id
        identity = EngineIdentity(dp_size=stated_ranks(server.parallelism.data_parallel_size))
        return identity, open_engine_facts(model, server, self.block_size)

    def abort_request(self, request_id: str) -> Any:
        return openengine_pb2.AbortRequest(request_id=request_id)


def open_engine_request(asked: Asked, model: str) -> Any:
    """The fields of OpenEngine's GenerateRequest beside the prompt."""
    message = asked.message
    sampling, output = message.sampling_config, message.output_config
    refuse(_ENGINE, {"an embedding bias": bool(message.embedding_bias)})
    found = openengine_pb2.GenerateRequest(request_id=message.request_id, model=model)
    copy_set(sampling, found.sampling, _SAMPLING)
    stopping = found.stopping
    stopping.max_tokens = asked.max_tokens
    if sampling.min_tokens:
        stopping.min_tokens = sampling.min_tokens
    for text in message.stop:
        stopping.conditions.add(stop_text=text)
    for token in message.stop_token_ids:
        stopping.conditions.add(stop_token_id=token)
    if message.ignore_eos:
        stopping.ignore_eos = True
    if message.include_stop_token_in_output:
        stopping.include_stop_in_output = True
    if output.logprobs > 0:
        found.response.return_output_logprobs = True
        found.response.output_candidates.top_n = output.logprobs
    if output.prompt_logprobs > 0:
        found.response.return_prompt_logprobs = True
        found.response.prompt_candidates.top_n = output.prompt_logprobs
    if message.HasField("cache_salt_id"):
        found.kv.cache_salt = str(message.cache_salt_id)
    if message.HasField("guided_decoding"):
        set_guide(message, found.guided, _ENGINE, _GUIDES, '{"type": "object"}')
    found.extra.update({"detokenize": False})  # ids are all that is wanted
    _set_phase(message, found)
    return found


def _set_phase(message: Any, found: Any) -> None:
    """What a leg of a request says of the other one."""
    fields = leg_fields(message, _PARCEL, _ENGINE)
    if message.disaggregated_params.request_type == CONTEXT_ONLY:
        found.extra.update({"request_type": "context_only"})
    elif fields:
        found.extra.update({"request_type": "generation_only"})
        try:
            found.kv.session.MergeFromString(b64decode(fields["kv_session"], validate=True))
        except (KeyError, TypeError, ValueError, DecodeError):
            raise InvalidRequestError(f"the prompt's handoff is none of {_ENGINE}") from None


def _parcel_of(session: Any) -> bytes:
    """A session with the hosts that it names, which are for the router."""
    hosts = [endpoint.host for endpoint in session.endpoints]
    address = MessageToDict(session.attributes_struct).get("ctx_info_endpoint")
    hosts += address if isinstance(address, list) else [] if address is None else [address]
    packed = b64encode(session.SerializeToString()).decode()
    return msgspec.json.encode({"kv_session": packed, "host": hosts})


def _first_tokens(session: Any) -> list[int]:
    """The token with which its reader's answer begins; nothing where it is not one."""
    tokens = MessageToDict(session.attributes_struct).get("first_gen_tokens")
    if not isinstance(tokens, list) or len(tokens) != 1:
        return []
    (token,) = tokens
    is_token = isinstance(token, float) and token.is_integer() and 0 <= token <= _MOST
    return [int(token)] if is_token else []


class OpenEngineReader:
    """See Reader. Each event has the tokens that are new; the last one has the usage."""

    def __init__(self, asked: Asked) -> None:
        self.answer = TrtllmAnswer(asked.message, asked.prompt_tokens)
        self.done = False
        self._max_tokens: int = asked.message.max_tokens
        self._parcel = b""

    def read(self, data: bytes) -> list[bytes]:
        try:
            message = openengine_pb2.GenerateResponse.FromString(data)
        except DecodeError:
            raise WorkerError("its answer cannot be read") from None
        if message.HasField("usage") and message.usage.HasField("cached_prompt_tokens"):
            set_cached(self.answer, message.usage.cached_prompt_tokens)
        event = message.WhichOneof("event")
        if event == "error":
            raise _failure_in(message.error)
        if event == "prompt":
            self.answer.prompt_logprobs = _logprobs(message.prompt.tokens)
        if event == "token":
            ids = [each.token_id for each in message.token.tokens]
            check_length(self.answer.completion_tokens + len(ids), self._max_tokens)
            added = self.answer.add(ids, _logprobs(message.token.tokens))
            return [] if added is None else [added]
        if event == "prefill_ready":
            session = message.prefill_ready.kv_session
            self._parcel = _parcel_of(session)
            if not self.answer.completion_tokens:
                self.answer.add(_first_tokens(session), [])
        if event != "finished":
            return []
        if self._parcel:
            return self.end()
        ended = message.finished
        matched = ended.stop_match.WhichOneof("match")
        self.done = True
        return [
            self.answer.complete(
                _REASONS.get(ended.reason, "unknown"),
                None if matched is None else getattr(ended.stop_match, matched),
            )
        ]

    def end(self) -> list[bytes]:
        """See Reader: a prefill whose session came has ended, with or without more words. It is
        for a decode worker, however it ended."""
        if self.done or not self._parcel:
            return []
        self.done = True
        return [with_handoff(self.answer.complete("length"), self._parcel)]


def open_engine_facts(model: Any, server: Any, block_size: int) -> EngineFacts:
    """Of an engine, by its answers to GetModelInfo and GetServerInfo."""
    capacity, parallel = server.capacity, server.parallelism
    tokens = capacity.total_kv_blocks * capacity.kv_block_size
    settings = {
        "total_kv_blocks": tokens // block_size,
        "max_num_seqs": capacity.max_running_requests,
        "max_num_batched_tokens": capacity.max_batched_tokens,
    }
    facts = facts_of(
        pb.GetModelInfoResponse(
            model_id=model.served_model_name or model.model_id,
            max_seq_len=min(model.max_context_length, _MOST),
            supported_features=stated_features(settings.items()),
        ),
        pb.GetServerInfoResponse(
            version=server.engine_version,
            backend=server.engine_name,
            tensor_parallel_size=min(parallel.tensor_parallel_size, _MOST),
            pipeline_parallel_size=min(parallel.pipeline_parallel_size, _MOST),
        ),
    )
    role = _ROLES.get(server.engine_role, "")
    transfer = TransferFacts(connector=OPENENGINE, role=role, block_size=capacity.kv_block_size)
    return replace(facts, transfer=transfer)


def _logprobs(tokens: Any) -> list[TokenLogprob]:
    """Of all tokens that have one."""
    return [
        TokenLogprob(
            each.token_id,
            each.logprob,
            sorted(((other.token_id, other.logprob) for other in each.candidates), key=by_logprob),
        )
        for each in tokens
        if each.HasField("logprob") or each.candidates
    ]


def _failure_in(error: Any) -> EngineCallError:
    codes = openengine_pb2.FailureCode
    name = codes.Name(error.code) if error.code in codes.values() else ""
    code = _CODES.get(name.removeprefix("FAILURE_CODE_"), StatusCode.INTERNAL)
    return EngineCallError(Origin.ENGINE, code, error.message or "the engine failed")


def _unknown(what: str) -> EngineCallError:
    return EngineCallError(Origin.ENGINE, StatusCode.UNIMPLEMENTED, f"{_ENGINE} has no {what}")
