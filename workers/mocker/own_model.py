"""The model that mock engines serve: a small tokenizer of our own, as a model's folder has it."""

from pathlib import Path
from typing import Any

from ..discovery import DECODE, PREFILL, ModelCard, model_files, tokenizer_files
from .config import MockerConfig

OWN_MODEL = Path(__file__).parent / "data"
"""A byte-level BPE of 4096 tokens, its configuration and a chat template."""
OWN_VOCABULARY = 4096
_KINDS: dict[str, Any] = {
    "agg": {},
    "prefill": {"worker_type": PREFILL, "needs": ((DECODE,),), "model_type": ""},
    "decode": {"worker_type": DECODE, "needs": ((PREFILL,),)},
}
"""What a card says of each mode of disaggregation, as Dynamo's do."""


def card_files(config: MockerConfig) -> dict[str, Any]:
    """The part of an engine's card that names its model's files: those of `model_path`, else our
    own, if the engine keeps to that tokenizer's ids; else none. ConfigError as `tokenizer_files`.
    """
    if config.model_path is not None:
        return tokenizer_files(config.model_path)
    return model_files(OWN_MODEL) if config.engine.vocab_size <= OWN_VOCABULARY else {}


def card_of(config: MockerConfig) -> ModelCard:
    """What a mock engine says of itself, without those files."""
    engine = config.engine
    return ModelCard(
        name=config.model_id,
        block_size=engine.block_size,
        context_length=engine.max_seq_len,
        total_kv_blocks=engine.num_gpu_blocks,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        dp_size=engine.dp_size,
        aliases=_names(config.aliases),
        **_KINDS[config.disaggregation_mode],
    )


def _names(text: str) -> tuple[str, ...]:
    """Those in a list with commas."""
    words = (word.strip() for word in text.split(","))
    return tuple(word for word in words if word)
