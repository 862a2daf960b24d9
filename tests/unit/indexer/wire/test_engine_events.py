"""What vLLM and SGLang publish, into the index: what it then knows of prompts."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from oracles.engine_events import ODD_BLOCKS
from support.kv_events.engine_events import CLEARED, removed, stored

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.indexer.event_index import EventIndex
from dynamo_router.indexer.hashing import block_hashes
from dynamo_router.indexer.wire import EngineEvents, frame_batch

SIZE = 4
W = WorkerWithDpRank(7)
GROUP = {"group_idx": 0}
INF = float("inf")
PROMPT = list(range(100, 100 + 4 * SIZE))


class Told:
    """An index that is told what an engine publishes."""

    def __init__(self) -> None:
        self.events = EngineEvents(SIZE)
        self.index = EventIndex()
        self.sequence = 0
        self.next_id = 1

    def tell(self, *events: Any) -> None:
        batch = self.events.read(msgspec.msgpack.encode([0.0, list(events)]), self.sequence + 1)
        assert batch is not None and batch.head.sequence == self.sequence + 1
        frame = frame_batch(
            batch.data,
            worker_id=W.worker_id,
            dp_rank=0,
            publisher_id=5,
            sequence=self.sequence,
            first_event_id=self.next_id,
            block_size=SIZE,
            decoded=batch.decoded,
        )
        self.sequence += 1
        self.next_id += batch.head.events
        self.index.apply(frame)

    def known(self, tokens: list[int] = PROMPT, **content: Any) -> int:
        return self.index.scores(block_hashes(tokens, SIZE, **content)).get(W, 0)

    def tiers(self, tokens: list[int] = PROMPT) -> Any:
        return self.index.tier_scores(block_hashes(tokens, SIZE)).get(W)


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    yield made
    made.index.close()


@pytest.mark.parametrize(
    "hashes",
    [
        [1, 2, 3, 4],
        [2**64 - 1, 2**63, 5, 6],
        [-1, -(2**63), 5, 6],
        [bytes([n]) * 32 for n in range(1, 5)],
    ],
)
def test_blocks_come_and_go_whatever_their_hashes_are(told: Told, hashes: list[Any]) -> None:
    told.tell(stored(hashes[:2], PROMPT[: 2 * SIZE], SIZE))
    assert told.known() == 2
    told.tell(stored(hashes[2:], PROMPT[2 * SIZE :], SIZE, parent=hashes[1]))
    assert told.known() == 4
    told.tell(removed(hashes[3]), removed(hashes[3]))  # evicted twice, as vLLM does
    assert told.known() == 3
    told.tell(CLEARED)
    assert told.known() == 0


def test_signed_and_unsigned_name_the_same_block(told: Told) -> None:
    told.tell(stored([-1], PROMPT[:SIZE], SIZE))
    told.tell(stored([5], PROMPT[SIZE : 2 * SIZE], SIZE, parent=2**64 - 1))
    assert told.known() == 2
    told.tell(removed(b"\0" * 24 + b"\xff" * 8))
    assert told.known() == 0


def test_arrays_of_older_engines(told: Told) -> None:
    told.tell(["BlockStored", [1, 2], None, PROMPT[: 2 * SIZE], SIZE, None, "GPU", None])
    told.tell(["BlockStored", [3], 2, PROMPT[2 * SIZE : 3 * SIZE], SIZE, None])
    assert told.known() == 3
    told.tell(["BlockRemoved", [3], "GPU"])
    assert told.known() == 2
    told.tell(["AllBlocksCleared"])
    assert told.known() == 0


def test_adapters_and_salts_share_no_cache(told: Told) -> None:
    told.tell(
        stored([1, 2], PROMPT[: 2 * SIZE], SIZE, lora_name="ad1", lora_id=1,
               extra_keys=[["ad1"], ["ad1"]]),
        stored([3, 4], PROMPT[: 2 * SIZE], SIZE, extra_keys=[["tenant"], None]),
        stored([5], PROMPT[2 * SIZE : 3 * SIZE], SIZE, parent=4, extra_keys=[None]),
        stored([6], PROMPT[:SIZE], SIZE, cache_salt="other"),
    )  # fmt: skip
    assert told.known() == 0
    assert told.known(lora_name="ad1") == 2
    assert told.known(cache_namespace="tenant") == 3  # said of the first block alone
    assert told.known(cache_namespace="other") == 1
    told.tell(removed(4), stored([4], PROMPT[SIZE : 2 * SIZE], SIZE, parent=3))
    assert told.known(cache_namespace="tenant") >= 2


def test_an_adapter_and_a_salt_together(told: Told) -> None:
    told.tell(stored([1], PROMPT[:SIZE], SIZE, lora_name="a", extra_keys=[["a", "tenant"]]))
    assert told.known(lora_name="a", cache_namespace="tenant") == 1
    assert told.known(lora_name="a") == told.known(cache_namespace="tenant") == 0


@pytest.mark.parametrize("keys", [[["img", 0]], [b"digest"], [7], [{"x": 1}]])
def test_blocks_with_images_match_no_prompt_of_tokens(told: Told, keys: list[Any]) -> None:
    told.tell(stored([1], PROMPT[:SIZE], SIZE, extra_keys=[keys]))
    assert told.known() == 0


def test_only_groups_of_full_attention_are_indexed(told: Told) -> None:
    told.tell(
        stored([1], PROMPT[:SIZE], SIZE, **GROUP, kv_cache_spec_kind="full_attention"),
        stored([2], PROMPT[SIZE : 2 * SIZE], SIZE, 1, kv_cache_spec_kind="mla_attention"),
        stored([3], PROMPT[2 * SIZE : 3 * SIZE], SIZE, 2, kv_cache_spec_kind="sliding_window"),
        stored([4], PROMPT[2 * SIZE :], 2 * SIZE, 2, kv_cache_spec_kind="mamba"),
    )
    assert told.known() == 2


def test_tiers_by_medium(told: Told) -> None:
    told.tell(stored([1], PROMPT[:SIZE], SIZE))
    for number, medium in ((2, "CPU"), (3, "DISK")):
        at = PROMPT[(number - 1) * SIZE : number * SIZE]
        told.tell(stored([number], at, SIZE, number - 1, medium=medium))
    tiers = told.tiers()
    assert tiers[:3] == (1, 1, 1)
    told.tell(removed(2, medium="CPU_PINNED"))
    assert told.tiers()[1] == 0


def test_a_pool_that_engines_share_is_not_the_workers(told: Told) -> None:
    told.tell(stored([1], PROMPT[:SIZE], SIZE, locality="REMOTE"))
    assert told.known() == 0


def test_ends_of_prompts_are_left_out(told: Told) -> None:
    told.tell(stored([1], PROMPT[:SIZE], SIZE))
    for number in range(2 * ODD_BLOCKS):
        told.tell(stored([50 + number], PROMPT[SIZE : SIZE + 2], 2, parent=1))
    assert told.known() == 1


def test_null_blocks_end_a_chain(told: Told) -> None:
    told.tell(stored([1, None, 3], PROMPT[: 3 * SIZE], SIZE), removed(None))
    assert told.known() == 1


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([stored([1], PROMPT[: 2 * SIZE], 2 * SIZE)], "blocks of 8 tokens, the router's have 4"),
        (
            [stored([n], [n, n], 2) for n in range(ODD_BLOCKS)],
            "blocks of 2 tokens, the router's have 4",
        ),
        ([stored([1], [[1, 2], [2, 3]], SIZE)], "pairs of tokens"),
        ([stored([1], [], 0)], "blocks of 0 tokens"),
    ],
)
def test_what_cannot_be_indexed_is_refused_by_its_reason(
    told: Told, events: list[Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        told.tell(*events)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", msgspec.msgpack.encode(5), msgspec.msgpack.encode([1.0]),
     msgspec.msgpack.encode([1.0, 5]), msgspec.msgpack.encode([1.0, [5]]),
     msgspec.msgpack.encode([1.0, [{}]]), msgspec.msgpack.encode([1.0, [[]]]),
     msgspec.msgpack.encode([1.0, [{"type": "BlockStored"}]]),
     msgspec.msgpack.encode([1.0, [stored(["x"], PROMPT[:SIZE], SIZE)]]),
     msgspec.msgpack.encode([1.0, [stored([1], ["a"] * SIZE, SIZE)]]),
     msgspec.msgpack.encode([1.0, [stored([1], [-5] * SIZE, SIZE)]]),
     msgspec.msgpack.encode([1.0, [stored([1], PROMPT[:SIZE], SIZE, lora_name=5)]]),
     msgspec.msgpack.encode([1.0, [stored([1], PROMPT[:SIZE], INF)]]),
     msgspec.msgpack.encode([1.0, [stored([1], PROMPT[:SIZE], SIZE, extra_keys=[[["i", INF]]])]]),
     b"\x92\x00\x90\x00", b"\x92\x00\x91\x81\xa4typ"],
)  # fmt: skip
def test_damaged_payloads_are_no_batch(payload: bytes) -> None:
    assert EngineEvents(SIZE).read(payload, 1) is None


def test_events_of_other_kinds_pass(told: Told) -> None:
    told.tell({"type": "SomethingNew", "x": 1}, ["Other"], stored([1], PROMPT[:SIZE], SIZE))
    assert told.known() == 1 and told.next_id == 4  # each has a number


def test_what_nests_deep_is_passed_over() -> None:
    deep = b"\x91" * 100_000 + b"\xc0"
    batch = EngineEvents(SIZE).read(b"\x93\x00\x90" + deep, 1)
    assert batch is not None and batch.head.events == 0


def test_smaller_blocks_in_a_row_are_refused_though_ours_are_known(told: Told) -> None:
    told.tell(stored([1], PROMPT[:SIZE], SIZE))
    with pytest.raises(ValueError, match="blocks of 2 tokens, the router's have 4"):
        told.tell(stored([2, 3], PROMPT[:SIZE], 2, parent=1))


def test_a_cache_that_is_told_from_its_beginning_has_no_salts(told: Told) -> None:
    told.tell(stored([1], PROMPT[:SIZE], SIZE, cache_salt="s"))
    told.events.forget()
    told.tell(stored([2], PROMPT[SIZE : 2 * SIZE], SIZE, parent=1))
    assert told.known(cache_namespace="s") == 1


def test_large_payloads_are_decoded_without_the_interpreter(told: Told) -> None:
    count = 8192
    tokens = list(range(count * SIZE))
    told.tell(stored(list(range(count)), tokens, SIZE, cache_salt="s"))
    assert told.known(tokens, cache_namespace="s") == count
