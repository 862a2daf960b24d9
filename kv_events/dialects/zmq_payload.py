"""ZmqPayload: the events that vLLM and SGLang publish over ZMQ, as batches of SubscribeKvEvents.

A payload is msgpack: [timestamp, events, rank?]. An event is a map with a `type`, or, in older
engines, an array whose first item is the type and whose others stand in the order of _FIELDS.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from ...indexer.wire import plain_batch
from ...workers.trtllm_proto import common_pb
from .pulled_call import NO_EVENTS, EventsRefused

STORED, REMOVED, CLEARED = "BlockStored", "BlockRemoved", "AllBlocksCleared"
_FIELDS = {
    STORED: (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "block_mm_infos",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    REMOVED: ("block_hashes", "medium", "group_idx"),
    CLEARED: (),
}
_DEVICE, _HOST, _DISK, _EXTERNAL = 1, 2, 3, 4  # KvCacheTier
_TIERS = {
    **dict.fromkeys(("CPU", "CPU_PINNED", "CPU_TIER1"), _HOST),
    **dict.fromkeys(("CPU_TIER2", "DISK", "NVME", "STORAGE"), _DISK),
    **dict.fromkeys(("EXTERNAL", "NETWORK", "REMOTE", "SHARED"), _EXTERNAL),
}
ODD_BLOCKS = 8
"""So many blocks of another size than ours, and none of ours: the engine's have that size."""
MAX_SALTED = 1 << 18
"""Blocks of which is kept under which salt they were stored."""

_decode = msgspec.msgpack.Decoder().decode


class ZmqPayload:
    """Translates one engine's payloads. `block_size` is that of our index, in tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._sizes_differ = 0  # blocks in a row, from the first one on
        self._size_known = False
        self._salts: dict[int, str] = {}  # of the blocks that have one, by hash
        self.strange = 0
        """events of an unknown type, or without what their type needs"""

    def batch(self, payload: bytes, sequence: int) -> bytes | None:
        """A serialized KvEventBatch with that number; None if the payload cannot be read.

        EventsRefused if its blocks cannot be those of our index.
        """
        if self._size_known and not self._salts:
            plain = plain_batch(payload, sequence, self._block_size)
            if plain is not None:
                return plain
        try:
            decoded = _decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if not isinstance(decoded, list) or len(decoded) < 2 or not isinstance(decoded[1], list):
            return None
        message = common_pb.KvEventBatch(sequence_number=sequence)
        for event in decoded[1]:
            try:
                self._add(message.events.add(), _fields(event))
            except NO_EVENTS:
                # What it may have said of blocks is lost: all has to be told anew.
                self.strange += 1
                return None
        data: bytes = message.SerializeToString()
        return data

    def forget(self) -> None:
        """The engine's cache is told from its beginning."""
        self._salts.clear()

    def _add(self, out: Any, event: dict[str, Any]) -> None:
        kind = event["type"]
        tier = _TIERS.get(str(event.get("medium") or "").upper(), _DEVICE)
        if kind == STORED:
            self._store(out, event, tier)
        elif kind == REMOVED:
            hashes = [_signed(value) for value in event["block_hashes"] if value is not None]
            for each in hashes if self._salts else ():
                self._salts.pop(each, None)
            out.removed.block_hashes.extend(hashes)
            out.removed.tier = tier
            _set_locality(out.removed, event)
        elif kind == CLEARED:
            self._salts.clear()
            out.cleared.SetInParent()
        else:
            self.strange += 1  # of something else than blocks: it says nothing to us

    def _store(self, of: Any, event: dict[str, Any], tier: int) -> None:
        size, tokens = int(event["block_size"]), event["token_ids"]
        if size < 1 or (tokens and isinstance(tokens[0], list | tuple)):
            what = "pairs of tokens (speculative decoding)" if size >= 1 else "blocks of 0 tokens"
            raise EventsRefused(f"it tells of {what}, which no prompt can be looked up by")
        hashes = event["block_hashes"]
        kind = str(event.get("kv_cache_spec_kind") or "full")
        if not kind.startswith(("full", "mla")):
            return  # what other groups of a hybrid model name are no blocks of a prefix
        self._check_size(size, len(hashes))
        out = of.stored
        out.tier = tier
        parent = event.get("parent_block_hash")
        if parent is not None:
            out.parent_block_hash = _signed(parent)
        _set_locality(out, event)
        out.kv_cache_spec_kind = kind
        lora_name, keys = event.get("lora_name"), event.get("extra_keys") or ()
        salt = event.get("cache_salt") or self._salt_of(lora_name, keys, out)
        if lora_name:
            out.lora_name = lora_name
        if salt:
            out.cache_salt = salt
        lora_id = event.get("lora_id")
        for place, value in enumerate(hashes):
            if value is None:
                break  # what follows has no parent that we could name
            block = out.blocks.add(
                block_hash=_signed(value),
                token_ids=tokens[place * size : (place + 1) * size],
                block_size=size,
            )
            if lora_id:
                block.lora_id = lora_id
            if place < len(keys) and keys[place]:
                _add_keys(block, keys[place])
            if salt and len(self._salts) < MAX_SALTED:
                self._salts[block.block_hash] = salt

    def _salt_of(self, lora_name: str | None, keys: Sequence[Any], out: Any) -> str | None:
        """The salt of a chain: its first block's key says it, the others inherit it."""
        if out.HasField("parent_block_hash"):
            return self._salts.get(out.parent_block_hash)
        texts = [key for key in (keys[0] or () if keys else ()) if isinstance(key, str)]
        return next((text for text in texts if text != lora_name), None)

    def _check_size(self, size: int, blocks: int) -> None:
        """Blocks smaller than ours may be ends of prompts, but not all of them."""
        if size == self._block_size:
            self._size_known = True
            return
        self._sizes_differ += blocks
        if size > self._block_size or (not self._size_known and self._sizes_differ >= ODD_BLOCKS):
            raise EventsRefused(f"blocks of {size} tokens, ours have {self._block_size}")


def _fields(event: Any) -> dict[str, Any]:
    """An event by the names of its fields, however it is written."""
    if isinstance(event, dict):
        return event
    kind = event[0]
    return {"type": kind, **dict(zip(_FIELDS.get(kind, ()), event[1:], strict=False))}


def _signed(value: int | bytes) -> int:
    """A block's hash as SubscribeKvEvents has it: 64 bits, of a longer one the last."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big", signed=len(value) >= 8)
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _set_locality(out: Any, event: dict[str, Any]) -> None:
    if str(event.get("locality") or "").upper() == "REMOTE":
        out.locality = common_pb.KV_CACHE_LOCALITY_REMOTE


def _add_keys(block: Any, keys: Sequence[Any]) -> None:
    """What went into a block's hash beside its tokens."""
    for key in keys:
        if isinstance(key, str):
            block.extra_keys.add(text=key)
        elif isinstance(key, bytes):
            block.extra_keys.add(blob=key)
        elif isinstance(key, int):
            block.extra_keys.add(number=key)
        elif isinstance(key, list) and len(key) == 2:
            block.extra_keys.add(
                multimodal=common_pb.KvMultimodalKey(identifier=str(key[0]), offset=int(key[1]))
            )
        else:
            block.extra_keys.add(text=str(key)).blob = repr(key).encode()
