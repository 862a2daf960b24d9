"""The model that mock engines serve: what they say of it, and a small tokenizer of our own, as a
model's folder has it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...workers.engine_facts import EngineFacts
from ...workers.records import DECODE, PREFILL, STATIC, end_tokens_of, model_files
from .config import EngineConfig, MockerConfig

OWN_MODEL = Path(__file__).parent / "data"
"""A byte-level BPE of 4096 tokens, its configuration and a chat template."""
OWN_VOCABULARY = 4096
VERSION = "mock-1"
CARD_KINDS: dict[str, dict[str, Any]] = {
    "agg": {},
    "prefill": {"worker_type": PREFILL, "needs": ((DECODE,),), "model_type": ""},
    "decode": {"worker_type": DECODE, "needs": ((PREFILL,),)},
}
"""What a card says of each mode of disaggregation, as Dynamo's do."""


def card_files(config: MockerConfig) -> dict[str, Any]:
    """The part of an engine's card that names its model's files: those of `model_path`, else our
    own, if the engine keeps to that tokenizer's ids; else none. ConfigError as `model_files`.
    """
    if config.model_path is not None:
        return model_files(config.model_path)
    return model_files(OWN_MODEL) if config.engine.vocab_size <= OWN_VOCABULARY else {}


def lacks_tokenizer(config: MockerConfig) -> str | None:
    """Why frontends will refuse these engines text; None if they are registered with a tokenizer,
    or nowhere."""
    if config.discovery.backend(given_workers=True) == STATIC or card_files(config):
        return None
    ids = config.engine.vocab_size
    return (
        f"text: none at frontends, as the tokenizer that comes along has {OWN_VOCABULARY} ids and"
        f" not {ids}: give --vocab-size {OWN_VOCABULARY}, or --model-path"
    )


def with_end_tokens(config: MockerConfig) -> MockerConfig:
    """The same, never to generate what ends an answer of its model, unless it says what does.
    ConfigError if a file of the model cannot be read."""
    if config.model_path is None or config.engine.eos_token_id:
        return config
    ends = tuple(sorted(end_tokens_of(config.model_path)))
    return replace(config, engine=replace(config.engine, eos_token_id=ends))


def facts_of(config: EngineConfig) -> EngineFacts:
    """What a mock engine says of itself."""
    settings = {
        "kv_block_size": config.block_size,
        "total_kv_blocks": config.num_gpu_blocks,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
    }
    return EngineFacts(
        max_input_len=config.max_input_len,
        max_seq_len=config.max_seq_len,
        max_batch_size=config.max_num_seqs,
        vocab_size=config.vocab_size,
        supported_features=tuple(f"{name}={value}" for name, value in settings.items()),
        settings=settings,
        version=VERSION,
        backend="tensorrt-llm",
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        context_parallel_size=1,
        world_size=config.dp_size,
    )
