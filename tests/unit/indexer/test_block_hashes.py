"""Block and sequence hashes: golden values, a plain-Python oracle, every kind of input."""

import json
import struct
import threading
from array import array
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from support.places import VECTORS

from dynamo_router.indexer.hashing import (
    block_hashes,
    compute_block_hash_for_seq,
    compute_seq_hash_for_block,
    sequence_hashes,
)

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
IOTA = list(range(1, 65))


def oracle_blocks(
    tokens: list[int],
    block_size: int,
    mm_infos: list[Any] | None = None,
    lora_name: str | None = None,
    is_eagle: bool | None = None,
    cache_namespace: str | None = None,
) -> list[int]:
    seed = 1337
    if lora_name:
        seed += xxhash.xxh3_64_intdigest(lora_name.encode(), 0)
    if cache_namespace:
        seed += xxhash.xxh3_64_intdigest(cache_namespace.encode(), 1)
    window = block_size + bool(is_eagle)
    hashes: list[int] = []
    for start in range(0, len(tokens) - window + 1, block_size):
        content = struct.pack(f"<{window}I", *tokens[start : start + window])
        index = len(hashes)
        if mm_infos and index < len(mm_infos) and mm_infos[index]:
            extra = sorted(each["mm_hash"] for each in mm_infos[index]["mm_objects"])
            content += struct.pack(f"<{len(extra)}Q", *extra)
        hashes.append(xxhash.xxh3_64_intdigest(content, seed % 2**64))
    return hashes


def oracle_sequence(local: list[int]) -> list[int]:
    hashes: list[int] = []
    for each in local:
        link = struct.pack("<QQ", hashes[-1], each) if hashes else None
        hashes.append(xxhash.xxh3_64_intdigest(link, 1337) if link else each)
    return hashes


# Taken from a running Dynamo; the checkout alone must notice a wrong hash.
GOLDEN = [
    ({}, [16863443419780771464, 2287610619914608821, 12129935312930971799, 5453111288643762282]),
    (
        {"is_eagle": True, "tokens": [*IOTA, 65]},
        [6752489653130089168, 14523356675115067678, 9119873847327268477, 10142352035642704506],
    ),
    (
        {
            "block_mm_infos": [
                None,
                {"mm_objects": [{"mm_hash": 9, "offsets": []}, {"mm_hash": 3, "offsets": []}]},
            ]
        },
        [16863443419780771464, 16999842090516971416, 12129935312930971799, 5453111288643762282],
    ),
    (
        {
            "tokens": [*IOTA, 65],
            "block_mm_infos": [{"mm_objects": [{"mm_hash": 2**64 - 1, "offsets": []}]}],
            "lora_name": "a",
            "cache_namespace": "b",
            "is_eagle": True,
        },
        [13053810777286451239, 16833322448499857971, 9366867372933340337, 5033995493373073593],
    ),
    ({"lora_name": "", "cache_namespace": "", "tokens": IOTA[:16]}, [16863443419780771464]),
]


@pytest.mark.parametrize(("arguments", "expected"), GOLDEN)
def test_golden_block_hashes(arguments: dict[str, Any], expected: list[int]) -> None:
    arguments = {"tokens": IOTA, "kv_block_size": 16, **arguments}
    assert compute_block_hash_for_seq(**arguments) == expected


def test_golden_sequence_hashes() -> None:
    local = compute_block_hash_for_seq(range(1, 13), 4)
    assert local == [14643705804678351452, 16777012769546811212, 483935686894639516]
    assert compute_seq_hash_for_block(local) == [
        14643705804678351452,
        4945711292740353085,
        12583592247330656132,
    ]


def test_every_recorded_case() -> None:
    cases = json.loads((VECTORS / "block_hashes.json").read_text())["cases"]
    assert len(cases) > 50
    for case in cases:
        keys = ("block_mm_infos", "lora_name", "is_eagle", "cache_namespace")
        local = compute_block_hash_for_seq(
            case["tokens"], case["block_size"], **{key: case[key] for key in keys}
        )
        assert local == case["local_block_hashes"], case["name"]
        assert compute_seq_hash_for_block(local) == case["sequence_hashes"], case["name"]


def test_every_recorded_error() -> None:
    recorded = json.loads((VECTORS / "block_hashes.json").read_text())["error_cases"]
    bads = {"bs0": ([1], 0), "negative": ([-1], 1), "too_big": ([2**32], 1)}
    assert set(recorded) == set(bads)
    for name, (tokens, block_size) in bads.items():
        with pytest.raises((ValueError, OverflowError)) as raised:
            compute_block_hash_for_seq(tokens, block_size)
        assert raised.type.__name__ == recorded[name].split(":")[0]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_agrees_with_the_oracle(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(U32, max_size=300))
    block_size = data.draw(st.integers(1, 80))
    mm_info = st.none() | st.builds(
        lambda hashes: {"mm_objects": [{"mm_hash": each, "offsets": []} for each in hashes]},
        st.lists(U64, max_size=3),
    )
    arguments: dict[str, Any] = {
        "block_mm_infos": data.draw(st.none() | st.lists(mm_info, max_size=6)),
        "lora_name": data.draw(st.none() | st.text(max_size=300)),
        "is_eagle": data.draw(st.none() | st.booleans()),
        "cache_namespace": data.draw(st.none() | st.text(max_size=20)),
    }
    expected = oracle_blocks(tokens, block_size, *arguments.values())
    assert compute_block_hash_for_seq(tokens, block_size, **arguments) == expected
    assert compute_seq_hash_for_block(expected) == oracle_sequence(expected)


@given(local=st.lists(U64, max_size=20), cut=st.integers(0, 20))
def test_a_chain_goes_on_from_its_parent(local: list[int], cut: int) -> None:
    whole = sequence_hashes(local).tolist()
    head, tail = whole[:cut], local[cut:]
    assert head + sequence_hashes(tail, head[-1] if head else None).tolist() == whole


TOKENS = [0, 1, 127, 5, 99, 100, 7, 8, 9]
INPUTS: dict[str, Any] = {
    "tuple": tuple(TOKENS),
    "range of ints": (each for each in TOKENS),
    "numpy scalars": [np.int32(each) for each in TOKENS],
    "bytes": struct.pack("<9I", *TOKENS),
    "bytearray": bytearray(struct.pack("<9I", *TOKENS)),
    "memoryview of bytes": memoryview(struct.pack("<9I", *TOKENS)),
    "unaligned bytes": memoryview(b"x" + struct.pack("<9I", *TOKENS))[1:],
    "memoryview of ints": memoryview(array("I", TOKENS)),
    "strided memoryview": memoryview(array("q", [x for t in TOKENS for x in (t, -1)]))[::2],
    "reversed array": np.array(TOKENS[::-1], np.uint32)[::-1],
    "column": np.array([[each, -1] for each in TOKENS])[:, 0],
    "big-endian": np.array(TOKENS, ">u4"),
    "read-only": np.frombuffer(struct.pack("<9I", *TOKENS), np.uint32),
    **{f"array {code}": array(code, TOKENS) for code in "bBhHiIlLqQ"},
    **{f"numpy {kind}": np.array(TOKENS, kind) for kind in ("i1", "u1", "i2", "u2", "i4", "u4")},
    **{f"numpy {kind}": np.array(TOKENS, kind) for kind in ("i8", "u8", "=i8")},
}


@pytest.mark.parametrize("kind", INPUTS)
def test_every_kind_of_input_hashes_alike(kind: str) -> None:
    assert compute_block_hash_for_seq(INPUTS[kind], 2) == oracle_blocks(TOKENS, 2)


@pytest.mark.parametrize("hashes", [[2**63, 5], np.array([2**63, 5], np.uint64)])
def test_sequence_hashes_of_a_list_or_an_array(hashes: Any) -> None:
    assert sequence_hashes(hashes).tolist() == oracle_sequence([2**63, 5])


def test_the_input_is_left_alone() -> None:
    tokens = np.arange(64, dtype=np.uint32)
    local = block_hashes(tokens, 16)
    sequence_hashes(local)
    assert tokens.tolist() == list(range(64))
    assert local.tolist() == oracle_blocks(list(range(64)), 16)
    assert local.dtype == np.uint64


@pytest.mark.parametrize("tokens", [[], (), b"", np.array([], np.int64), array("I")])
def test_no_token_has_no_hash(tokens: Any) -> None:
    assert compute_block_hash_for_seq(tokens, 16) == []
    assert compute_block_hash_for_seq(tokens, 16, is_eagle=True) == []
    assert compute_seq_hash_for_block([]) == []


@pytest.mark.parametrize(
    "tokens",
    [
        [1, -1],
        [1, 2**32],
        [1, -(2**40)],
        [1, 2**70],
        [1, np.int64(-1)],
        array("i", [1, -1]),
        array("q", [1, 2**32]),
        np.array([1, -1], np.int8),
        np.array([1, -1], np.int64),
        np.array([1, 2**32], np.uint64),
        np.array([1, 0, -1, 0], np.int32)[::2],
    ],
)
def test_a_token_out_of_range_is_named(tokens: Any) -> None:
    with pytest.raises(OverflowError, match=r"token id -?\d+ at position 1 is out of range"):
        compute_block_hash_for_seq(tokens, 16)


def test_a_hash_out_of_range_is_named() -> None:
    bads: list[Any] = [[0, -1], [0, 2**64], np.array([0, -1])]
    for bad in bads:
        with pytest.raises(OverflowError, match=r"block hash -?\d+ at position 1 is out of range"):
            sequence_hashes(bad)
    with pytest.raises(OverflowError):
        sequence_hashes([1], parent=-1)


@pytest.mark.parametrize(
    "tokens",
    ["text", None, 7, [1.0], ["1"], [None], np.array([1.0]), np.array([True]), array("d", [1.0])],
)
def test_what_is_no_integer_is_refused(tokens: Any) -> None:
    with pytest.raises(TypeError):
        compute_block_hash_for_seq(tokens, 16)


def test_bytes_must_hold_whole_tokens_and_arrays_one_dimension() -> None:
    with pytest.raises(ValueError, match="7 bytes are no whole number of 4-byte"):
        compute_block_hash_for_seq(b"1234567", 16)
    with pytest.raises(ValueError, match="one dimension of integers, not 2"):
        compute_block_hash_for_seq(np.zeros((2, 2), np.uint32), 16)


def test_block_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="kv_block_size cannot be 0"):
        compute_block_hash_for_seq([1], 0)
    with pytest.raises(ValueError, match="cannot be negative"):
        compute_block_hash_for_seq([1], -4)
    assert compute_block_hash_for_seq([1], 2**63 - 1, is_eagle=True) == []


def test_malformed_multimodal_infos_are_refused() -> None:
    bads: list[Any] = [[{}], [{"mm_objects": [{}]}], [7], [{"mm_objects": None}]]
    for bad in bads:
        with pytest.raises(ValueError, match="block_mm_infos"):
            compute_block_hash_for_seq([1], 1, bad)
    with pytest.raises(OverflowError, match="mm_hash"):
        compute_block_hash_for_seq([1], 1, [{"mm_objects": [{"mm_hash": -1}]}])


class Shrinking:
    """An item that empties its list when it is asked for its value."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __index__(self) -> int:
        self.items.clear()
        return 1


def test_a_list_that_shrinks_while_it_is_read_is_noticed() -> None:
    items: list[Any] = []
    items.extend([1, Shrinking(items), *range(1000)])
    with pytest.raises(RuntimeError, match="changed while it was read"):
        compute_block_hash_for_seq(items, 16)


def test_long_prompts_hash_alike_from_many_threads() -> None:
    tokens = np.arange(200_000, dtype=np.uint32)
    expected = block_hashes(tokens, 64).tolist()
    assert expected[::500] == [oracle_blocks(tokens[i : i + 64].tolist(), 64)[0]
                               for i in range(0, 200_000 - 63, 64 * 500)]  # fmt: skip
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(block_hashes(tokens, 64).tolist()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
