"""Model cards: what a worker says of its model, as Dynamo 1.6.1 writes and reads it.

A card stands at `v1/mdc/{namespace}/{component}/{endpoint}/{id}`, beside the worker's instance.
Source: recorded from ai-dynamo 1.6.1 (`tests/vectors/dynamo_etcd_keys.txt`).
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from ...runtime.components import EndpointName
from ...runtime.errors import ConfigError
from ...runtime.kv_stores import Entry
from ..engine_facts import EngineFacts
from ..registry import MAX_RANKS

CARDS = "v1/mdc"
NO_REQUESTS = ("prefill", "encode")
"""Kinds of workers that are no use alone."""
_FILES = {
    "model_info": ("hf_config_json", "config.json"),
    "tokenizer": ("hf_tokenizer_json", "tokenizer.json"),
    "prompt_formatter": ("hf_tokenizer_config_json", "tokenizer_config.json"),
    "gen_config": ("hf_generation_config_json", "generation_config.json"),
}
_REQUIRED_FILES = ("model_info", "tokenizer")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What routing needs to know of a card. None or 0 where it does not say."""

    name: str
    block_size: int
    worker_type: str = "aggregated"
    context_length: int = 0
    total_kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    dp_size: int = 1
    dp_start: int = 0

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
            settings=known,
        )


class _RuntimeConfig(msgspec.Struct):
    context_length: int | None = None
    total_kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    data_parallel_start_rank: int | None = None
    data_parallel_size: int | None = None


class _Card(msgspec.Struct):
    display_name: str
    kv_cache_block_size: int
    worker_type: str | None = None
    context_length: int | None = None
    runtime_config: _RuntimeConfig = msgspec.field(default_factory=_RuntimeConfig)


class _Value(msgspec.Struct):
    card_json: _Card


def decode_card(entry: Entry) -> ModelCard:
    """ValueError for what is no card."""
    try:
        card = msgspec.json.decode(entry.value, type=_Value).card_json
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a model card: {error}") from None
    runtime = card.runtime_config
    dp_size, dp_start = runtime.data_parallel_size or 1, runtime.data_parallel_start_rank or 0
    if not (1 <= dp_size <= MAX_RANKS and 0 <= dp_start < 2**31 and card.kv_cache_block_size >= 1):
        raise ValueError("a card with impossible ranks or blocks")
    return ModelCard(
        card.display_name,
        card.kv_cache_block_size,
        card.worker_type or "aggregated",
        max(0, runtime.context_length or card.context_length or 0),
        runtime.total_kv_blocks,
        runtime.max_num_seqs,
        runtime.max_num_batched_tokens,
        dp_size,
        dp_start,
    )


def encode_card(
    card: ModelCard, name: EndpointName, instance_id: int, files: dict[str, Any] | None = None
) -> tuple[str, str, bytes]:
    """(bucket, key, value) of a card. `files`: see `tokenizer_files`."""
    slug = "".join(c if c.isascii() and c.isalnum() else "-" for c in card.name.lower())
    value = {
        "type": "Model",
        "namespace": name.namespace,
        "component": name.component,
        "endpoint": name.endpoint,
        "instance_id": instance_id,
        "card_json": {
            "display_name": card.name,
            "slug": slug,
            **(files or {}),
            "context_length": card.context_length,
            "kv_cache_block_size": card.block_size,
            "migration_limit": 0,
            "model_type": "Chat | Completions",
            "model_input": "Tokens",
            "worker_type": card.worker_type,
            "needs": [],
            "runtime_config": {
                "context_length": card.context_length,
                "total_kv_blocks": card.total_kv_blocks,
                "max_num_seqs": card.max_num_seqs,
                "max_num_batched_tokens": card.max_num_batched_tokens,
                "data_parallel_start_rank": card.dp_start,
                "data_parallel_size": card.dp_size,
                "enable_local_indexer": True,
                "kv_event_publishing_enabled": True,
            },
        },
    }
    return CARDS, f"{name.prefix}{instance_id:x}", msgspec.json.encode(value)


def tokenizer_files(folder: str) -> dict[str, Any]:
    """The part of a card that names the files of a model's folder, with their checksums.

    Whoever reads the card must be able to read the files. ConfigError if there is no tokenizer, or
    the extra `dynamo` is missing, which has the only checksum that Dynamo takes.
    """
    try:
        blake3 = import_module("blake3").blake3
    except ModuleNotFoundError:
        text = "model_path needs blake3: pip install 'dynamo-router[dynamo]'"
        raise ConfigError(text, key="model_path") from None
    path = Path(folder).absolute()
    card: dict[str, Any] = {"source_path": str(path)}
    for key, (kind, name) in _FILES.items():
        try:
            data = (path / name).read_bytes()
        except OSError as error:
            if key in _REQUIRED_FILES:
                text = f"model_path: cannot read {path / name}: {error.strerror}"
                raise ConfigError(text, key="model_path") from None
            continue
        checksum = f"blake3:{blake3(data).hexdigest()}"
        card[key] = {kind: {"path": str(path / name), "checksum": checksum, "size": len(data)}}
    return card
