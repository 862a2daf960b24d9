"""What is known of an engine's model: by the engine, and by the files in the model's folder."""

from pathlib import Path
from typing import Any

import msgspec

from ...workers.engine_facts import EngineFacts
from .config import EngineWorkerConfig


def model_facts(
    config: EngineWorkerConfig,
    *,
    backend: str,
    version: str,
    block_size: int,
    total_blocks: int = 0,
    max_seq_len: int = 0,
    max_num_seqs: int = 0,
    max_num_batched_tokens: int = 0,
    vocab_size: int = 0,
    dp_size: int = 1,
) -> EngineFacts:
    """0: the engine does not say; then the model's config.json does, if it is there."""
    files = _config_of(config.model)
    longest = max_seq_len or config.max_model_len or _number(files, "max_position_embeddings")
    settings = {
        "kv_block_size": block_size,
        "total_kv_blocks": total_blocks,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
    }
    known = {name: value for name, value in settings.items() if value}
    return EngineFacts(
        model_id=config.served_name,
        max_input_len=max(0, longest - 1),
        max_seq_len=longest,
        max_batch_size=max_num_seqs,
        vocab_size=vocab_size or _number(files, "vocab_size"),
        supported_features=tuple(f"{name}={value}" for name, value in known.items()),
        settings=known,
        version=version,
        backend=backend,
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=1,
        context_parallel_size=1,
        world_size=config.tensor_parallel_size * dp_size,
    )


def _config_of(model: str) -> dict[str, Any]:
    """The model's config.json; empty if there is none that can be read."""
    try:
        return msgspec.json.decode((Path(model) / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}


def _number(files: dict[str, Any], name: str) -> int:
    """Of the model, or of the part of it that is a language model."""
    part = files.get("text_config")
    value = files.get(name) or (part.get(name) if isinstance(part, dict) else None)
    return value if isinstance(value, int) and value > 0 else 0
