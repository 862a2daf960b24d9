"""A language model of random weights that llama.cpp runs: of our own tokenizer, in 0.1 s."""

import json
from pathlib import Path

import gguf
import numpy as np

from dynamo_router.engines.mocker.own_model import OWN_MODEL

WIDTH, LAYERS, HEADS, KV_HEADS, INNER = 32, 2, 4, 2, 64


def write_tiny_model(path: Path, context: int = 4096) -> Path:
    """A GGUF file whose tokens are those of the tokenizer that mock engines bring along."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    count = _add_tokenizer(writer, json.loads((OWN_MODEL / "tokenizer.json").read_text()))
    writer.add_vocab_size(count)
    random = np.random.default_rng(1)

    def weights(name: str, *shape: int) -> None:
        values = random.standard_normal(shape).astype(np.float32) * 0.2
        writer.add_tensor(f"{name}.weight", values)

    weights("token_embd", count, WIDTH)
    weights("output_norm", WIDTH)
    weights("output", count, WIDTH)
    narrow = KV_HEADS * WIDTH // HEADS
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH),
            "attn_k": (narrow, WIDTH), "attn_v": (narrow, WIDTH), "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER),
        }.items():  # fmt: skip
            weights(f"blk.{layer}.{name}", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, object]) -> int:
    """How many tokens it has."""
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    special = {token["id"]: token["content"] for token in added}
    by_id = {token_id: token for token, token_id in model["vocab"].items()} | special
    tokens = [by_id[token_id] for token_id in range(len(by_id))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([int(kinds[token_id not in special]) for token_id in range(len(tokens))])
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    writer.add_token_merges(merges)
    writer.add_eos_token_id(max(special))
    return len(tokens)
