"""TrtllmEvents: KV events as TensorRT-LLM's OpenAI server and its LLM API give them, translated to
those of vLLM, which the index decodes.

Each answer is a list of events, by rank numbered from 0 without a hole unless the engine's event
buffer ran over. Of models with several attention windows the largest is indexed.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

from .pulled_call import EventsRefused

_MEDIA = ("GPU", "CPU", "DISK", "EXTERNAL")
"""By cache level."""


class RankEvents(NamedTuple):
    """Events of one rank in a row, translated."""

    rank: int
    numbers: list[int]
    """the engine's number of each"""
    events: list[dict[str, Any]]


class TrtllmEvents:
    """Translates one engine's events. `block_size` is that of the index, in tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._window: int | None = None  # the largest that was announced
        self._last: dict[int, int] = {}  # event id, by rank

    def back_to(self, events: Iterable[dict[str, Any]]) -> int | None:
        """The first number among these that is not above the rank's last one; None if there is
        none. 0: the engine was started anew."""
        for event in filter(None, events):
            number = int(event["event_id"])
            if number <= self._last.get(_rank(event), -1):
                return number
        return None

    def forget(self) -> None:
        """Another engine's numbers begin."""
        self._window = None
        self._last.clear()

    def translate(self, events: list[dict[str, Any]]) -> list[RankEvents]:
        """Each run of events of a rank. EventsRefused if they cannot be indexed; KeyError,
        TypeError or ValueError if they are damaged."""
        runs = []
        for rank, some in groupby((event for event in events if event), key=_rank):
            run = RankEvents(rank, [], [])
            for event in some:
                self._last[rank] = int(event["event_id"])
                run.numbers.append(self._last[rank])
                run.events.append(self._translate(event))
            runs.append(run)
        return runs

    def _translate(self, event: dict[str, Any]) -> dict[str, Any]:
        data, window = event["data"], event.get("window_size")
        kind = data["type"]
        if kind == "created":
            self._window = max(self._window or 0, window or 0) or None
        elif window is not None and self._window is not None and window != self._window:
            pass  # its number counts, but it is of other layers
        elif kind == "stored":
            return self._stored(data)
        elif kind == "removed":
            return _removed([value for value in data["block_hashes"] if value is not None], 0)
        elif kind == "updated":
            moved = data.get("cache_level")
            if moved and moved["old_value"] != moved["new_value"]:
                # Nothing says what was in it: where it went to it is not known any more.
                return _removed([data["block_hash"]], min(moved["old_value"], 3))
        return {"type": str(kind)}

    def _stored(self, data: dict[str, Any]) -> dict[str, Any]:
        parent, salt = data.get("parent_hash"), ""
        hashes: list[int] = []
        tokens: list[list[int]] = []
        keys: list[list[bytes]] = []
        level = 0
        for block in data["blocks"]:
            if block["block_hash"] is None:
                break
            own_salt = block.get("cache_salt") or ""
            if not salt:
                salt = own_salt
            elif own_salt != salt:
                break  # an event has one salt: the rest is left out
            level = min(int(block.get("cache_level") or 0), 3)
            hashes.append(_number(block["block_hash"]))
            tokens.append([token["token_id"] for token in block["tokens"]])
            keys.append([repr(key).encode() for key in block.get("mm_keys") or ()])
        self._check_sizes([len(each) for each in tokens])
        return {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": None if parent is None else _number(parent),
            "token_ids": [token for each in tokens for token in each],
            "block_size": self._block_size,
            "lora_name": data.get("lora_name"),
            "cache_salt": salt,
            "extra_keys": keys if any(keys) else None,
            "medium": _MEDIA[level],
        }

    def _check_sizes(self, sizes: list[int]) -> None:
        """A last block of fewer tokens is the end of a prompt."""
        wrong = [size for size in sizes[:-1] if size != self._block_size]
        wrong += [size for size in sizes[-1:] if size > self._block_size]
        if wrong:
            raise EventsRefused(
                f"blocks of {wrong[0]} tokens, the router's have {self._block_size}"
            )


def _removed(hashes: list[Any], level: int) -> dict[str, Any]:
    return {
        "type": "BlockRemoved",
        "block_hashes": [_number(value) for value in hashes],
        "medium": _MEDIA[level],
    }


def _rank(event: dict[str, Any]) -> int:
    return int(event.get("attention_dp_rank") or 0)


def _number(block_hash: Any) -> int:
    if not isinstance(block_hash, int):
        raise EventsRefused("block hashes that are no 64-bit numbers (hash_algo)")
    return block_hash & 2**64 - 1
