"""TrtllmEvents: what TensorRT-LLM's OpenAI server tells at /kv_cache_events, as batches.

Each answer is a list of events, by rank numbered from 0 without a hole unless the engine's event
buffer ran over. Of models with several attention windows the largest is indexed.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from ...workers.trtllm_proto import common_pb
from .pulled_call import EventsRefused

_TIERS = (1, 2, 3, 4)  # KvCacheTier of each cache level


class TrtllmEvents:
    """Translates one engine's events; numbers the batches itself, from 1."""

    def __init__(self) -> None:
        self.sequence = 0
        self._window: int | None = None  # the largest that was announced
        self._last: dict[int, int] = {}  # event id, by rank
        self.strange = 0
        """events of an unknown type"""

    def back_to(self, events: Iterable[dict[str, Any]]) -> int | None:
        """The first number among these that was told before; None if there is none. 0: the engine
        was started anew."""
        for event in filter(None, events):
            number = int(event["event_id"])
            if number <= self._last.get(_rank(event), -1):
                return number
        return None

    def forget(self) -> None:
        """Another engine's numbers begin."""
        self.sequence, self._window = 0, None
        self._last.clear()

    def batches(self, events: list[dict[str, Any]]) -> list[bytes]:
        """One KvEventBatch for each run of events of a rank. EventsRefused if they have hashes that
        are no numbers; KeyError, TypeError or ValueError if they are not as they should be."""
        made = []
        for rank, some in groupby((event for event in events if event), key=_rank):
            self.sequence += 1
            message = common_pb.KvEventBatch(sequence_number=self.sequence, dp_rank=rank)
            for event in some:
                self._last[rank] = int(event["event_id"])
                self._add(message.events.add(event_id=self._last[rank] + 1), event)
            made.append(message.SerializeToString())
        return made

    def _add(self, out: Any, event: dict[str, Any]) -> None:
        data, window = event["data"], event.get("window_size")
        kind = data["type"]
        if kind == "created":
            self._window = max(self._window or 0, window or 0) or None
            return
        if window is not None and self._window is not None and window != self._window:
            return  # its number counts, but it is of other layers
        if kind == "stored":
            self._store(out.stored, data)
        elif kind == "removed":
            hashes = [_signed(value) for value in data["block_hashes"] if value is not None]
            out.removed.block_hashes.extend(hashes)
            out.removed.tier = _TIERS[0]
        elif kind == "updated":
            moved = data.get("cache_level")
            if moved and moved["old_value"] != moved["new_value"]:
                # Nothing says what was in it: where it went to it is not known any more.
                out.removed.block_hashes.append(_signed(data["block_hash"]))
                out.removed.tier = _TIERS[min(moved["old_value"], 3)]
        else:
            self.strange += 1

    def _store(self, out: Any, data: dict[str, Any]) -> None:
        if data.get("parent_hash") is not None:
            out.parent_block_hash = _signed(data["parent_hash"])
        if data.get("lora_name"):
            out.lora_name = data["lora_name"]
        for block in data["blocks"]:
            if block["block_hash"] is None:
                break
            salt = block.get("cache_salt")
            if salt and not out.cache_salt:
                out.cache_salt = salt
            elif (salt or "") != out.cache_salt:
                break  # an event has one salt: the rest is left out
            out.tier = _TIERS[min(int(block.get("cache_level") or 0), 3)]
            tokens = [token["token_id"] for token in block["tokens"]]
            made = out.blocks.add(
                block_hash=_signed(block["block_hash"]), token_ids=tokens, block_size=len(tokens)
            )
            for key in block.get("mm_keys") or ():
                made.extra_keys.add(blob=repr(key).encode())


def _rank(event: dict[str, Any]) -> int:
    return int(event.get("attention_dp_rank") or 0)


def _signed(value: Any) -> int:
    if not isinstance(value, int):
        raise EventsRefused("block hashes that are no 64-bit numbers (hash_algo)")
    number: int = value & 2**64 - 1
    return number - 2**64 if number >= 2**63 else number
