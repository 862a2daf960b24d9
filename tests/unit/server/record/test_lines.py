"""A line of a record: what it says of a request, what it hides, and what equal hashes mean."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.observability.recorded import BLOCK, KEY, SALT, ended

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.admission import NO_OBJECTIVES
from dynamo_router.router.policy import Decision
from dynamo_router.router.prompt import Prompt
from dynamo_router.server.record._salting import json_of_salted, siphash_of
from dynamo_router.server.record.lines import Salt, blocks_to_hash, new_header
from dynamo_router.workers.trtllm_proto import pb

STEP = blocks_to_hash(BLOCK)
MASK = 2**64 - 1


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK


def siphash(data: bytes, key: bytes) -> int:
    """SipHash-2-4 of some bytes under a key of 16, as its paper writes it."""
    low, high = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))
    state = [
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    ]

    def rounds(count: int) -> None:
        v0, v1, v2, v3 = state
        for _ in range(count):
            v0, v2 = (v0 + v1) & MASK, (v2 + v3) & MASK
            v1, v3 = _rotated(v1, 13) ^ v0, _rotated(v3, 16) ^ v2
            v0 = _rotated(v0, 32)
            v2, v0 = (v2 + v1) & MASK, (v0 + v3) & MASK
            v1, v3 = _rotated(v1, 17) ^ v2, _rotated(v3, 21) ^ v0
            v2 = _rotated(v2, 32)
        state[:] = [v0, v1, v2, v3]

    padded = data + b"\0" * (7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        state[3] ^= word
        rounds(2)
        state[0] ^= word
    state[2] ^= 0xFF
    rounds(4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def line(unique: int = 1, salt: Salt = SALT, **more: Any) -> Any:
    return json.loads(salt.line(*ended(**more), STEP, unique))


def ids(tokens: int, first: int = 0, unique: int = 1) -> list[int]:
    found: list[int] = line(unique, tokens=tokens, first=first)["hash_ids"]
    return found


def test_siphash_is_that_of_its_paper() -> None:
    """The value of appendix A: of the bytes 0 to 14 under the key 0 to 15."""
    assert siphash_of(bytes(range(15)), KEY) == siphash(bytes(range(15)), KEY) == 0xA129CA6149BE45E5


@given(st.binary(max_size=40), st.binary(min_size=16, max_size=16))
def test_siphash_is_that_of_plain_python(data: bytes, key: bytes) -> None:
    assert siphash_of(data, key) == siphash(data, key)


@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=20),
    st.integers(1, 5),
    st.none() | st.integers(0, 2**64 - 1),
)
def test_salted_hashes_are_those_of_plain_python(
    hashes: list[int], step: int, tail: int | None
) -> None:
    wanted = [*hashes[step - 1 :: step], *([] if tail is None else [tail])]
    found = json.loads(json_of_salted(np.array(hashes, np.uint64), step, tail, KEY))
    assert found == [siphash(each.to_bytes(8, "little"), KEY) >> 11 for each in wanted]


def test_a_key_has_16_bytes_and_a_step_a_block() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        siphash_of(b"", b"short")
    with pytest.raises(ValueError, match="one block at least"):
        json_of_salted(np.zeros(1, np.uint64), 0, None, KEY)


def test_it_has_what_became_of_the_request() -> None:
    found = line()
    hashes = found.pop("hash_ids")
    assert len(hashes) == 2
    assert found == {
        "timestamp": 1000.0,
        "input_length": 100,
        "output_length": 5,
        "status": "ok",
        "worker": "7/1",
        "overlap_tokens": 32,
        "cached_tokens": 32,
        "ttft_ms": 250.0,
        "itl_ms": 100.0,
        "e2e_ms": 1000.0,
        "queue_ms": 50.0,
        "engine_ttft_ms": 150.0,
        "foreseen_ttft_ms": 200.0,
        "soonest_ttft_ms": 100.0,
        "ttft_objective_ms": 500.0,
        "itl_objective_ms": 25.0,
    }


def test_what_is_not_known_is_not_there() -> None:
    refused = line(
        first_at=None, decision=None, objectives=NO_OBJECTIVES,
        status="resource_exhausted", last_message=b"", messages=0, attempts=3,
    )  # fmt: skip
    assert (refused["status"], refused["output_length"], refused["attempts"]) == (
        "resource_exhausted", 0, 3,
    )  # fmt: skip
    known = {"timestamp", "input_length", "output_length", "hash_ids", "status", "e2e_ms"}
    assert set(refused) == known | {"queue_ms", "attempts"}
    assert "worker" in line(decision=Decision(WorkerWithDpRank(2**64 - 1, 0), 0, 0, 0, 0))
    assert not {"ttft_ms", "itl_ms"} & set(line(streaming=False))
    assert "foreseen_ttft_ms" not in line(foreseen_ttft_s=(float("inf"), 0.1))


def test_a_stream_that_was_cut_has_the_tokens_so_far() -> None:
    chunk = pb.GenerateResponse()
    chunk.chunk.token_ids.append(3)
    assert line(last_message=chunk.SerializeToString(), messages=2)["output_length"] == 2
    chunk.chunk.completion_tokens, chunk.chunk.cached_tokens = 3, 16
    found = line(last_message=chunk.SerializeToString(), messages=2)
    assert (found["output_length"], found["cached_tokens"]) == (3, 16)


def test_names_are_salted() -> None:
    named = line(session="anna/chat", tenant="acme")
    assert named["session_id"] != named["tenant"] and len(named["tenant"]) == 12
    assert not {"anna", "acme"} & set(json.dumps(named).replace('"', " ").replace("/", " ").split())
    assert line(session="anna/chat")["session_id"] == named["session_id"]
    other = line(salt=Salt(bytes(16), 100.0, 0.0), session="anna/chat")
    assert other["session_id"] != named["session_id"]
    assert not set(other["hash_ids"]) & set(named["hash_ids"])


def test_hashes_are_no_plain_block_hashes() -> None:
    prompt = Prompt(list(range(256)), BLOCK)
    plain = {int(each) >> shift for each in prompt.sequence_hashes for shift in (0, 11)}
    assert not plain & set(ids(256))


@pytest.mark.parametrize("tokens", [1, 15, 16, 63, 64, 65, 80, 128, 130])
def test_there_is_a_hash_for_each_block_and_the_rest(tokens: int) -> None:
    assert len(ids(tokens)) == -(-tokens // 64)
    assert all(0 <= each < 2**53 for each in ids(tokens))


def test_equal_prefixes_have_equal_hashes() -> None:
    assert ids(64) == ids(200)[:1]
    assert ids(200)[:3] == ids(300)[:3] and ids(200)[3] != ids(300)[3]
    assert ids(100) == ids(100, unique=2)  # the rest has full blocks of the engine's
    assert ids(70)[0] == ids(70, unique=2)[0] and ids(70)[1] != ids(70, unique=2)[1]
    assert not set(ids(192)) & set(ids(192, first=1))


def test_a_large_block_has_a_hash_of_its_own() -> None:
    assert [blocks_to_hash(size) for size in (1, 16, 48, 64, 128)] == [64, 4, 2, 1, 1]


def test_the_header_says_how_to_read_it() -> None:
    header = new_header(SALT, BLOCK, "tiny", process=2)
    assert (header.block_size, header.engine_block_size, header.process) == (64, 16, 2)
    assert header.began == "2023-11-14T22:13:20.000+00:00"
    assert header.record != new_header(SALT, BLOCK, "other").record
    assert header.record == new_header(Salt(KEY, 0.0, 0.0), BLOCK, "tiny").record
