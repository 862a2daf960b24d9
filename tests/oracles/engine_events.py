"""What vLLM and SGLang publish, read in plain Python: what the kernel is held to."""

from typing import Any

import msgspec
import xxhash

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.wire import TIERS, EventData, Removed, RouterEvent, Stored, StoredBlock
from dynamo_router.indexer.wire.events import Cleared

FIELDS = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
        "lora_name", "extra_keys", "block_mm_infos", "group_idx", "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip
MEDIA = {
    **dict.fromkeys(("CPU", "CPU_PINNED", "CPU_TIER1"), 1),
    **dict.fromkeys(("CPU_TIER2", "DISK", "NVME", "STORAGE"), 2),
    **dict.fromkeys(("EXTERNAL", "NETWORK", "REMOTE", "SHARED"), 3),
}
ODD_BLOCKS = 8


class Refused(Exception):
    """Its blocks cannot be those of the index."""


class Damaged(Exception):
    """It cannot be read."""


def number(value: Any) -> int:
    """The 64 bits that name a block."""
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big")
    if not isinstance(value, int) or isinstance(value, bool):
        raise Damaged
    return value % 2**64


class EngineOracle:
    """One engine's payloads, one after another."""

    def __init__(self, worker: WorkerWithDpRank, block_size: int) -> None:
        self.worker, self.size = worker, block_size
        self.salts: dict[int, str] = {}
        self.odd, self.known = 0, False

    def read(self, payload: bytes, first: int) -> list[RouterEvent]:
        """Its events, numbered from `first` on."""
        try:
            decoded = msgspec.msgpack.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise Damaged from None
        if not isinstance(decoded, list) or len(decoded) < 2 or not isinstance(decoded[1], list):
            raise Damaged
        made: list[RouterEvent] = []
        for event in decoded[1]:
            for data, tier in self._event(event):
                made.append(RouterEvent(self.worker, first + len(made), data, TIERS[tier]))
        return made

    def _event(self, event: Any) -> list[tuple[EventData, int]]:
        if isinstance(event, list) and event:
            names = FIELDS.get(event[0], ()) if isinstance(event[0], str) else ()
            event = {"type": event[0], **dict(zip(names, event[1:], strict=False))}
        if not isinstance(event, dict) or "type" not in event:
            raise Damaged
        kind, medium = event["type"], event.get("medium")
        tier = MEDIA.get(medium.upper(), 0) if isinstance(medium, str) else 0
        if kind == "AllBlocksCleared":
            self.salts.clear()
            return [(Cleared(), each) for each in range(4)]
        if kind == "BlockStored":
            parent, blocks = self._stored(event)
            return [(Stored(parent, blocks), tier) if blocks else (Removed(()), 0)]
        if kind == "BlockRemoved":
            hashes = self._removed(event)
            return [(Removed(hashes), tier)] if hashes else [(Removed(()), 0)]
        return [(Removed(()), 0)]

    def _removed(self, event: dict[str, Any]) -> tuple[int, ...]:
        if not isinstance(event.get("block_hashes"), list):
            raise Damaged
        hashes = tuple(number(value) for value in event["block_hashes"] if value is not None)
        for each in hashes:
            self.salts.pop(each, None)
        return () if is_remote(event) else hashes

    def _stored(self, event: dict[str, Any]) -> tuple[int | None, tuple[StoredBlock, ...]]:
        size, tokens = event.get("block_size"), event.get("token_ids")
        if not isinstance(size, int) or "token_ids" not in event or "block_hashes" not in event:
            raise Damaged
        if size < 1 or (isinstance(tokens, list) and tokens and isinstance(tokens[0], list)):
            raise Refused
        kind = event.get("kv_cache_spec_kind") or "full"
        if not str(kind).startswith(("full", "mla")):
            return None, ()
        hashes = event["block_hashes"]
        if not isinstance(hashes, list) or not isinstance(tokens, list):
            raise Damaged
        names = [None if value is None else number(value) for value in hashes]
        parent = event.get("parent_block_hash")
        parent = None if parent is None else number(parent)
        leading = names[: names.index(None)] if None in names else names
        self._check_size(size, len(hashes), len(leading))
        if any(not isinstance(t, int) or not 0 <= t < 2**32 for t in tokens):
            raise Damaged
        return parent, self._blocks(event, parent, leading, tokens)

    def _check_size(self, size: int, hashes: int, leading: int) -> None:
        if size == self.size:
            self.known = True
            return
        self.odd += hashes
        if size > self.size or leading > 1 or (not self.known and self.odd >= ODD_BLOCKS):
            raise Refused

    def _blocks(
        self, event: dict[str, Any], parent: int | None, names: list[Any], tokens: list[int]
    ) -> tuple[StoredBlock, ...]:
        lora_name, salt = event.get("lora_name") or None, event.get("cache_salt") or None
        keys = event.get("extra_keys") or []
        for text in (lora_name, salt):
            if text is not None and not isinstance(text, str):
                raise Damaged
        if salt is None and parent is not None:
            salt = self.salts.get(parent)
        elif salt is None:
            texts = [key for key in (keys[0] or ()) if isinstance(key, str)] if keys else []
            salt = next((text for text in texts if text and text != lora_name), None)
        if salt:
            self.salts.update(dict.fromkeys(names, salt))
        if lora_name is None and event.get("lora_id"):
            lora_name = str(event["lora_id"])
        blocks = []
        if event["block_size"] == self.size and not is_remote(event):
            for place, name in enumerate(names[: len(tokens) // self.size]):
                own = tokens[place * self.size : (place + 1) * self.size]
                seed = 1337 + sum(
                    xxhash.xxh3_64_intdigest(text.encode(), kind)
                    for text, kind in ((lora_name, 0), (salt, 1))
                    if text
                )
                seed += sum(
                    xxhash.xxh3_64_intdigest(msgspec.msgpack.encode(key), 2)
                    for key in (keys[place] if place < len(keys) else None) or ()
                    if not isinstance(key, str)
                )
                plain = b"".join(token.to_bytes(4, "little") for token in own)
                local = xxhash.xxh3_64_intdigest(plain, seed % 2**64)
                blocks.append(StoredBlock(name, local))
        return tuple(blocks)


def is_remote(event: dict[str, Any]) -> bool:
    """Whether it is about a pool that engines share."""
    place = event.get("locality")
    return isinstance(place, str) and place.upper() == "REMOTE"
