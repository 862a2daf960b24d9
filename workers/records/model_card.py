"""Model cards: what a worker says of its model, as Dynamo 1.6.1 writes and reads it.

A card stands at `v1/mdc/{namespace}/{component}/{endpoint}/{id}`, beside the worker's instance;
that of an adapter one level below. Dynamo's first generation has the names with dots,
`v1/mdc/{namespace}.{component}.{endpoint}/{id}`: read too, and written where that is configured.
Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/dynamo_etcd_keys.txt`).
"""

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from blake3 import blake3

from ...base.errors import UNREADABLE
from ...runtime.components import EndpointName, Generation, read_id
from ...runtime.kv_stores import Entry
from ..engine_facts import EngineFacts
from ..registry import MAX_RANKS
from ..transfer_facts import BOOTSTRAP, NIXL_PUSH, TransferFacts
from .card_checksum import card_checksum, context_length, partner_checksum
from .card_files import CardFile, files_of

CARDS = "v1/mdc"
PREFILL, DECODE, ENCODE, AGGREGATED = "prefill", "decode", "encode", "aggregated"
"""Kinds of workers: of the prompt alone, of the rest, of images, of all of it."""
NO_REQUESTS = (PREFILL, ENCODE)
"""Kinds of workers that are no use alone."""


_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What routing needs to know of a card. None, 0 or "" where it does not say."""

    name: str
    block_size: int
    worker_type: str = AGGREGATED
    context_length: int = 0
    total_kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    dp_size: int = 1
    dp_start: int = 0
    aliases: tuple[str, ...] = ()
    """more names of the model"""
    adapter: str = ""
    """the LoRA adapter that this card is of; it stands beside the card of its model"""
    model_type: str = "Chat | Completions"
    model_input: str = "Tokens"
    needs: tuple[tuple[str, ...], ...] = ()
    """kinds of workers without which this one is no use: any of these groups"""
    files: tuple[CardFile, ...] = ()
    """of the model: configuration, tokenizer, templates"""
    checksum: str = ""
    """of all that must be equal in workers that stand in for each other; known once it is read"""
    partner_checksum: str = ""
    """of what a prefill worker and a decode worker of one request must have in common; as above"""
    reasoning_parser: str = ""
    tool_call_parser: str = ""
    """which parsers its answers need, by Dynamo's names for them"""
    transfer: TransferFacts = TransferFacts()
    parallel: tuple[int, int] = (0, 0)
    """its tensor and pipeline parallel sizes; 0: it does not say"""

    @property
    def facts(self) -> EngineFacts:
        settings = {
            "kv_block_size": self.block_size,
            "total_kv_blocks": self.total_kv_blocks,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }
        known = {name: value for name, value in settings.items() if value}
        return EngineFacts(
            model_id=self.name,
            max_seq_len=self.context_length,
            max_batch_size=self.max_num_seqs or 0,
            supported_features=tuple(f"{name}={value}" for name, value in known.items()),
            tensor_parallel_size=self.parallel[0],
            pipeline_parallel_size=self.parallel[1],
            settings=known,
            transfer=self.transfer,
        )


class _Bootstrap(msgspec.Struct):
    bootstrap_host: str | None = None
    bootstrap_port: _Port | None = None


class _NixlPush(msgspec.Struct):
    engine_id: str
    host: str
    port: _Port
    tensor_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    pipeline_parallel_size: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1


class _RuntimeConfig(msgspec.Struct):
    disaggregated_endpoint: _Bootstrap | None = None
    nixl_push: _NixlPush | None = None
    context_length: int | None = None
    total_kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    data_parallel_start_rank: int | None = None
    data_parallel_size: int | None = None
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None


class _Lora(msgspec.Struct):
    name: str = ""


class _Card(msgspec.Struct):
    display_name: str
    kv_cache_block_size: int
    worker_type: str | None = None
    context_length: int | None = None
    architectural_max_context_length: int | None = None
    source_path: str | None = None
    runtime_config: _RuntimeConfig = msgspec.field(default_factory=_RuntimeConfig)
    aliases: tuple[str, ...] | None = None
    lora: _Lora | None = None
    model_type: str | None = None
    model_input: str | None = None
    needs: tuple[tuple[str, ...], ...] | None = None


class _Value(msgspec.Struct):
    card_json: dict[str, Any]


def decode_card(entry: Entry) -> ModelCard:
    """ValueError for what is no card."""
    try:
        card_json = msgspec.json.decode(entry.value, type=_Value).card_json
        card = msgspec.convert(card_json, type=_Card)
    except UNREADABLE as error:
        raise ValueError(f"not a model card: {error}") from None
    runtime, kind = card.runtime_config, card.worker_type or AGGREGATED
    dp_size, dp_start = runtime.data_parallel_size or 1, runtime.data_parallel_start_rank or 0
    if not (1 <= dp_size <= MAX_RANKS and 0 <= dp_start < 2**31):
        raise ValueError(f"{dp_size} ranks from {dp_start} on: 1 to {MAX_RANKS} are possible")
    if not 1 <= card.kv_cache_block_size < 2**31:
        raise ValueError(f"blocks of {card.kv_cache_block_size} tokens are not possible")
    if not card.display_name:
        raise ValueError("the card has no display_name")
    return ModelCard(
        card.display_name,
        card.kv_cache_block_size,
        kind,
        max(0, context_length(card_json)),
        runtime.total_kv_blocks,
        runtime.max_num_seqs,
        runtime.max_num_batched_tokens,
        dp_size,
        dp_start,
        card.aliases or (),
        card.lora.name if card.lora is not None else "",
        card.model_type or "",
        card.model_input or "Tokens",
        card.needs or (),
        files_of(card_json),
        card_checksum(card_json),
        partner_checksum(card_json),
        runtime.reasoning_parser or "",
        runtime.tool_call_parser or "",
        *_transfer(runtime, kind),
    )


def _transfer(runtime: _RuntimeConfig, kind: str) -> tuple[TransferFacts, tuple[int, int]]:
    """How a worker hands prompts over, and its parallel sizes, as far as its card says."""
    role = kind if kind in (PREFILL, DECODE) else ""
    if (push := runtime.nixl_push) is not None:
        sizes = push.tensor_parallel_size, push.pipeline_parallel_size
        ids = (push.engine_id,)
        facts = TransferFacts(
            connector=NIXL_PUSH, role=role, host=push.host, port=push.port, engine_ids=ids
        )
        return facts, sizes
    server = runtime.disaggregated_endpoint
    if server is None or server.bootstrap_host is None or server.bootstrap_port is None:
        return TransferFacts(role=role), (0, 0)
    host, port = server.bootstrap_host, server.bootstrap_port
    return TransferFacts(connector=BOOTSTRAP, role=role, host=host, port=port), (0, 0)


def read_card_key(key: str) -> tuple[EndpointName, int, str]:
    """(endpoint, instance's id, adapter or "") of a card's key. ValueError if it is none."""
    first, *rest = key.split("/")
    if "." in first:
        name, (id, *suffix) = EndpointName.parse(first), rest or [""]
    elif len(rest) >= 3:
        name, (id, *suffix) = EndpointName(first, rest[0], rest[1]), rest[2:]
    else:
        raise ValueError(f"{key[:100]!r} is no key of a card")
    return name, read_id(id), "/".join(suffix)


def encode_card(
    card: ModelCard,
    name: EndpointName,
    instance_id: int,
    files: dict[str, Any] | None = None,
    generation: Generation = "today",
) -> tuple[str, str, bytes]:
    """(bucket, key, value) of a card. `files`, which say what those in the card would: see
    `model_files`."""
    value: dict[str, Any] = {
        "type": "Model",
        "namespace": name.namespace,
        "component": name.component,
        "endpoint": name.endpoint,
        "instance_id": instance_id,
        "card_json": {
            "display_name": card.name,
            "slug": slug_of(card.name),
            **(files or {}),
            "context_length": card.context_length,
            "kv_cache_block_size": card.block_size,
            "migration_limit": 0,
            "model_type": card.model_type,
            "model_input": card.model_input,
            "worker_type": card.worker_type,
            "needs": card.needs,
            "runtime_config": {
                "context_length": card.context_length,
                "total_kv_blocks": card.total_kv_blocks,
                "max_num_seqs": card.max_num_seqs,
                "max_num_batched_tokens": card.max_num_batched_tokens,
                "data_parallel_start_rank": card.dp_start,
                "data_parallel_size": card.dp_size,
                "reasoning_parser": card.reasoning_parser or None,
                "tool_call_parser": card.tool_call_parser or None,
                "enable_local_indexer": True,
                "kv_event_publishing_enabled": True,
            },
        },
    }
    if card.aliases:
        value["card_json"]["aliases"] = card.aliases
    prefix = name.prefix if generation == "today" else f"{name}/"
    key = f"{prefix}{instance_id:x}"
    if card.adapter:
        suffix = value["model_suffix"] = slug_of(card.adapter)
        value["card_json"]["lora"] = {"name": card.adapter}
        key += f"/{suffix}"
    return CARDS, key, msgspec.json.encode(value)


def adapter_id(name: str) -> int:
    """The number by which engines know a LoRA adapter, as Dynamo has it. Of 31 bits."""
    digest = blake3(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") & 0x7FFF_FFFF


def slug_of(name: str) -> str:
    """A name as it may stand in a key: lower case, letters and digits of ASCII, else hyphens."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())
