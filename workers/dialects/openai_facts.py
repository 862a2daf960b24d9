"""What an engine that speaks OpenAI's HTTP says of itself. Pure."""

from contextlib import suppress
from dataclasses import replace
from typing import Annotated

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from ...base.errors import UNREADABLE, WorkerError
from ..engine_facts import EngineFacts, facts_of
from ..transfer_facts import BOOTSTRAP, NONE, TRTLLM_SERVE, TransferFacts
from ..trtllm_proto import pb
from .openai_requests import EngineKind

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_CACHE = "vllm:cache_config_info"


class _Meta(msgspec.Struct):
    n_vocab: _Count = 0
    n_ctx: _Count = 0


class ServedModel(msgspec.Struct):
    """The model of an engine, by its /v1/models; 0 and "" where it does not say."""

    id: str
    owned_by: str = ""
    parent: str | None = None
    max_model_len: _Count | None = None
    meta: _Meta | None = None

    @property
    def kind(self) -> EngineKind:
        return _KINDS.get(self.owned_by, EngineKind.COMPLETIONS)


_KINDS = {
    "llamacpp": EngineKind.LLAMA,
    "sglang": EngineKind.SGLANG,
    "tensorrt_llm": EngineKind.TRTLLM,
}


class _Models(msgspec.Struct):
    data: list[ServedModel]


class _Defaults(msgspec.Struct):
    n_ctx: _Count = 0


class LlamaProps(msgspec.Struct):
    """llama.cpp's /props: requests at a time, and the tokens that each of them can have."""

    default_generation_settings: _Defaults = msgspec.field(default_factory=_Defaults)
    total_slots: _Count = 0
    build_info: str = ""


def model_in(models: bytes) -> ServedModel:
    """The model that /v1/models tells of, adapters apart. WorkerError if there is none."""
    try:
        listed = msgspec.json.decode(models, type=_Models).data
    except UNREADABLE as error:
        raise WorkerError(f"its /v1/models cannot be read: {error}") from None
    model = next((model for model in listed if model.parent is None), None)
    if model is None:
        raise WorkerError("its /v1/models lists no model")
    return model


def llama_facts(model: ServedModel, props: bytes | None) -> EngineFacts:
    """Of llama.cpp, by its /props if it tells them. WorkerError if they cannot be read."""
    try:
        shown = LlamaProps() if props is None else msgspec.json.decode(props, type=LlamaProps)
    except UNREADABLE as error:
        raise WorkerError(f"its /props cannot be read: {error}") from None
    meta = model.meta or _Meta()
    slots = shown.total_slots
    return facts_of(
        pb.GetModelInfoResponse(
            model_id=model.id,
            max_seq_len=shown.default_generation_settings.n_ctx or meta.n_ctx,
            vocab_size=meta.n_vocab,
            max_batch_size=slots,
            supported_features=[f"max_num_seqs={slots}"] if slots else [],
        ),
        pb.GetServerInfoResponse(version=shown.build_info, backend="llama.cpp"),
    )


class _SglangInfo(msgspec.Struct):
    """SGLang's /server_info: its arguments, and what it made of them."""

    version: str = ""
    disaggregation_mode: str | None = None
    disaggregation_bootstrap_port: _Count | None = None
    page_size: _Count | None = None
    tp_size: _Count = 0
    pp_size: _Count = 0
    max_total_num_tokens: _Count | None = None
    max_running_requests: _Count | None = None


def sglang_facts(model: ServedModel, info: bytes | None, host: str, block_size: int) -> EngineFacts:
    """Of SGLang at `host`, by its /server_info if it gives that. WorkerError if it cannot be
    read."""
    try:
        args = _SglangInfo() if info is None else msgspec.json.decode(info, type=_SglangInfo)
    except UNREADABLE as error:
        raise WorkerError(f"its /server_info cannot be read: {error}") from None
    role = args.disaggregation_mode or ""
    settings = {
        "total_kv_blocks": (args.max_total_num_tokens or 0) // block_size,
        "max_num_seqs": args.max_running_requests or 0,
    }
    facts = facts_of(
        pb.GetModelInfoResponse(
            model_id=model.id,
            max_seq_len=model.max_model_len or 0,
            supported_features=[f"{name}={value}" for name, value in settings.items() if value],
        ),
        pb.GetServerInfoResponse(
            version=args.version,
            backend=model.owned_by,
            tensor_parallel_size=args.tp_size,
            pipeline_parallel_size=args.pp_size,
        ),
    )
    if role not in ("prefill", "decode"):
        return replace(facts, transfer=TransferFacts(connector=NONE))
    transfer = TransferFacts(
        connector=BOOTSTRAP,
        role=role,
        host=host,
        port=args.disaggregation_bootstrap_port or 0,
        block_size=args.page_size or 0,
    )
    return replace(facts, transfer=transfer)


class _Rank(msgspec.Struct):
    engine_id: str


def mooncake_ids(answer: bytes) -> tuple[str, ...]:
    """The ids of the ranks of an engine, by the /query of vLLM's Mooncake bootstrap server.
    WorkerError if they cannot be read."""
    try:
        ranks = msgspec.json.decode(answer, type=dict[int, _Rank])
    except UNREADABLE as error:
        raise WorkerError(f"its bootstrap server's /query cannot be read: {error}") from None
    if sorted(ranks) != list(range(len(ranks))):
        raise WorkerError("its bootstrap server's /query leaves ranks out")
    return tuple(ranks[rank].engine_id for rank in sorted(ranks))


class _Version(msgspec.Struct):
    version: str = ""


def completion_facts(
    model: ServedModel, metrics: bytes | None, block_size: int, version: bytes | None = None
) -> EngineFacts:
    """Of vLLM, TensorRT-LLM or another engine. vLLM's /metrics tell how large its cache is: in
    blocks of its own, here of `block_size` tokens. `version`: its /version."""
    tokens = 0 if metrics is None else _cache_tokens(metrics)
    build = ""
    with suppress(*UNREADABLE):
        build = msgspec.json.decode(version or b"{}", type=_Version).version
    facts = facts_of(
        pb.GetModelInfoResponse(
            model_id=model.id,
            max_seq_len=model.max_model_len or 0,
            supported_features=[f"total_kv_blocks={tokens // block_size}"] if tokens else [],
        ),
        pb.GetServerInfoResponse(backend=model.owned_by, version=build),
    )
    if model.kind is not EngineKind.TRTLLM:
        return facts
    return replace(facts, transfer=TransferFacts(connector=TRTLLM_SERVE))


def _cache_tokens(metrics: bytes) -> int:
    """Tokens in the KV cache, by a page of metrics; 0 where it does not say."""
    lines = [line for line in metrics.decode(errors="replace").splitlines() if _CACHE in line]
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                blocks, size = (sample.labels.get(k, "") for k in ("num_gpu_blocks", "block_size"))
                if sample.name == _CACHE and blocks.isdecimal() and size.isdecimal():
                    return min(int(blocks) * int(size), 2**62)
    except ValueError:
        pass
    return 0
