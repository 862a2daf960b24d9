"""The checksum of a model card: equal for workers that can stand in for each other.

Blake3 over the fields that Dynamo 1.6.1 takes, in its order, so that both call a set of workers by
the same name. What a worker may have of its own is not in it: ranks, capacities, parsers,
`migration_limit`, `user_data`.
"""

import struct
from collections.abc import Mapping
from typing import Any

from blake3 import blake3
from msgspec import json

IN_ORDER = ("model_info", "tokenizer", "prompt_formatter", "chat_template_file", "gen_config")
"""The parts that are files."""
_KINDS = {"prefill": 1, "decode": 2, "encode": 3, "aggregated": 4}
_LENGTHS = ("context_length", "architectural_max_context_length")


def card_checksum(card: Mapping[str, Any]) -> str:
    """Of a card as it is in JSON, its fields of the types that they must have. Hexadecimal."""
    return blake3(checksum_bytes(card)).hexdigest()


def partner_checksum(card: Mapping[str, Any]) -> str:
    """The same of what a prefill worker and a decode worker must have in common to share a request:
    all but their kinds, what they need, how long a sequence each can take, more names, and where
    the files stand that both have."""
    own = ("worker_type", "needs", "aliases", "source_path", *_LENGTHS)
    common = {name: value for name, value in card.items() if name not in own}
    runtime = dict(card.get("runtime_config") or {})
    runtime.pop("context_length", None)
    return card_checksum({**common, "runtime_config": runtime})


def checksum_bytes(card: Mapping[str, Any]) -> bytes:
    """What the checksum is of."""
    parts = [card["display_name"].encode(), _text(card.get("source_path"))]
    for name in IN_ORDER:
        parts += [_text(file.get("checksum")) for file in named_files(card.get(name))]
    extra = [file for file in card.get("extra_files") or () if isinstance(file, dict)]
    parts += sorted(
        _text(file.get("path")).rpartition(b"/")[2]
        + b"\0"
        + _text(file.get("checksum")).rpartition(b":")[2]
        for file in extra
    )
    parts.append(_number(context_length(card)))
    parts.append(_number(card["kv_cache_block_size"]))
    parts.append(bytes([_KINDS.get(card.get("worker_type") or "", 0)]))
    groups = card.get("needs") or ()
    parts.append(_number(len(groups)))
    for group in groups:
        parts += [_number(len(group)), bytes(_KINDS.get(kind, 0) for kind in group)]
    # No recorded card has these; they count all the same, in a form of our own.
    for name in ("prompt_context", "router_config", "indexer_identity"):
        if card.get(name) is not None:
            parts.append(json.encode({name: card[name]}, order="deterministic"))
    if aliases := card.get("aliases"):
        parts.append(_number(len(aliases)))
        parts += [_number(len(each)) + each for each in (alias.encode() for alias in aliases)]
    return b"".join(parts)


def context_length(card: Mapping[str, Any]) -> int:
    """Most tokens of prompt and answer, by the field that goes before the others; 0: not given."""
    runtime = card.get("runtime_config") or {}
    lengths = (
        runtime.get("context_length"),
        card.get("architectural_max_context_length"),
        card.get("context_length"),
    )
    return next((length for length in lengths if isinstance(length, int)), 0)


def named_files(named: Any) -> list[Mapping[str, Any]]:
    """The files of one part: {kind: file}, or {kind: {"file": file}}."""
    if not isinstance(named, dict):
        return []
    found = (kind.get("file", kind) for kind in named.values() if isinstance(kind, dict))
    return [file for file in found if isinstance(file, dict)]


def _text(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else b""


def _number(value: int) -> bytes:
    return struct.pack(">I", value & 0xFFFF_FFFF)
