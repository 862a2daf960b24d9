"""RemotePrefillRequest: what travels, and what is refused."""

from typing import Any

import msgspec
import numpy as np
import pytest

from dynamo_router.engines.prefill_queue.messages import (
    MOST_BYTES,
    PACKED_FROM,
    KvLayout,
    QueueMessageError,
    RemotePrefillRequest,
    encode_request,
    hex_hashes,
    packed_tokens,
    read_request,
)


def request_of(tokens: int, **more: Any) -> RemotePrefillRequest:
    ids = np.arange(tokens, dtype=np.uint32)
    blocks = -(-tokens // 16)
    fields: dict[str, Any] = {
        "v": 1, "request_id": "r", "attempt": "a", "engine_id": "0-0", "model": "m", "pool": "",
        "block_size": 16, "block_ids": tuple(range(blocks)),
        "block_hashes": hex_hashes(range(blocks)), "kv_layout": KvLayout(1, 2, 2048),
        **packed_tokens(ids),
    }  # fmt: skip
    return RemotePrefillRequest(**(fields | more))


@pytest.mark.parametrize("tokens", [1, PACKED_FROM - 1, PACKED_FROM, 5000])
def test_tokens_and_hashes_come_back(tokens: int) -> None:
    found = read_request(encode_request(request_of(tokens)))
    assert found.token_ids().tolist() == list(range(tokens))
    assert found.hashes() == list(range(-(-tokens // 16)))
    assert found.sampling_params == {"max_tokens": 1, "temperature": 0}


def test_long_prompts_are_packed() -> None:
    body = encode_request(request_of(100_000))
    assert len(body) < 5.5 * 100_000 + 27 * 6250  # JSON has 6.9 bytes for such an id
    assert b'"prompt_token_ids"' not in body


def test_a_message_that_nats_would_not_take_is_not_made() -> None:
    with pytest.raises(QueueMessageError, match=f"are more than {MOST_BYTES}") as error:
        encode_request(request_of(400_000))
    assert error.value.reason == "mismatch"


@pytest.mark.parametrize(
    ("body", "reason", "text"),
    [
        (b"", "unreadable", "no RemotePrefillRequest"),
        (b"[1]", "unreadable", "no RemotePrefillRequest"),
        (b"[" * 100_000, "unreadable", "no RemotePrefillRequest"),
        (b'{"v": 2}', "version", "version 2, this engine knows 1"),
        (b'{"v": 1}', "unreadable", "missing required field"),
    ],
)
def test_what_is_no_request_of_this_version(body: bytes, reason: str, text: str) -> None:
    with pytest.raises(QueueMessageError, match=text) as error:
        read_request(body)
    assert error.value.reason == reason


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"block_ids": (0,)}, "mismatch"),
        ({"block_hashes": ("1",)}, "mismatch"),
        ({"computed_block_ids": (1,)}, "mismatch"),
        ({"block_size": 8}, "mismatch"),
        ({"block_hashes": ("-1", "0")}, "unreadable"),
        ({"block_hashes": ("f" * 17, "0")}, "unreadable"),
        ({"prompt_tokens_b64": "AAA="}, "unreadable"),
        ({"prompt_token_ids": (2**32,) * 20}, "unreadable"),
    ],
)
def test_lists_that_contradict_each_other(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(QueueMessageError) as error:
        read_request(encode_request(request_of(20, **more)))
    assert error.value.reason == reason


def test_unknown_fields_are_passed_over() -> None:
    plain = msgspec.json.decode(encode_request(request_of(20)))
    assert read_request(msgspec.json.encode(plain | {"colour": "blue"})).request_id == "r"
