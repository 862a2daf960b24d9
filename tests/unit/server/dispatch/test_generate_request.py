"""What is read of a GenerateRequest, and what is left alone."""

import pytest
from support.fake_engine import prompt

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.indexer.hashing import block_hashes
from dynamo_router.router.affinity import AffinityConfig, Session
from dynamo_router.server.dispatch.generate_request import (
    read_generate,
    with_request_id,
    with_retention,
)
from dynamo_router.workers.retention import Retention
from dynamo_router.workers.trtllm_proto import pb


def hashes(request: pb.GenerateRequest) -> list[int]:
    """Its prompt's, in blocks of one token."""
    return read_generate(request.SerializeToString(), 1).prompt.local_hashes.tolist()


def test_the_routing_facts() -> None:
    request = prompt("abc", 5, cache_salt_id=7)
    request.lora_config.task_id = 3
    request.sampling_config.num_return_sequences = 2
    facts = read_generate(request.SerializeToString(), 2)
    assert (facts.request_id, facts.max_tokens, facts.sequences) == ("abc", 4, 2)
    assert (facts.prompt.isl, facts.prompt.blocks, facts.largest_token) == (5, 3, 5)
    expected = block_hashes([1, 2, 3, 4], 2, lora_name="3", cache_namespace="7")
    assert facts.prompt.local_hashes.tolist() == expected.tolist()


def test_absent_is_not_zero() -> None:
    plain = read_generate(prompt().SerializeToString(), 1)
    assert plain.sequences == 1 and hashes(prompt(tokens=3)) == block_hashes([1, 2, 3], 1).tolist()
    salted = block_hashes([1, 2, 3], 1, cache_namespace="0")
    assert hashes(prompt(tokens=3, cache_salt_id=0)) == salted.tolist()


def test_tokens_use_all_32_bits() -> None:
    request = pb.GenerateRequest()
    request.tokenized.input_token_ids.extend([0, 2**32 - 1])
    assert hashes(request) == block_hashes([0, 2**32 - 1], 1).tolist()


@pytest.mark.parametrize("body", [b"\xff\xff", b"\x0a\x05ab", prompt().SerializeToString()[:-3]])
def test_junk_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="no trtllm.GenerateRequest"):
        read_generate(body, 1)


@pytest.mark.parametrize("request_", [pb.GenerateRequest(), prompt(tokens=0)])
def test_an_empty_prompt_is_refused(request_: object) -> None:
    with pytest.raises(InvalidRequestError, match="empty prompt"):
        read_generate(request_.SerializeToString(), 1)  # type: ignore[attr-defined]


def test_images_and_prompt_tables_keep_prompts_apart() -> None:
    def hashed(*images: bytes, table: bytes = b"", **more: int) -> list[int]:
        request = prompt(**more)
        request.multimodal_input.image_data.extend(images)
        request.prompt_tuning_config.embedding_table = table
        return hashes(request)

    different = [
        hashed(),
        hashed(b"cat"),
        hashed(b"dog"),
        hashed(b"catdog"),
        hashed(b"cat", b"dog"),
        hashed(b"cat", cache_salt_id=1),
        hashed(table=b"cat"),
    ]
    assert len(set(map(tuple, different))) == len(different)
    assert hashed(b"cat") == hashed(b"cat")


@pytest.mark.parametrize("request_id", ["x", "é" * 100, "y" * 20000])
def test_an_id_is_replaced_without_touching_the_rest(request_id: str) -> None:
    request = prompt("old", 6, cache_salt_id=7)
    changed = pb.GenerateRequest.FromString(
        with_request_id(request.SerializeToString(), request_id)
    )
    assert changed.request_id == request_id
    changed.request_id = "old"
    assert changed == request


KEEPS = AffinityConfig(session_retention_secs=60.0)


def retained(
    body: bytes, session: Session, config: AffinityConfig, *metadata: tuple[str, str]
) -> bytes:
    return with_retention(body, read_generate(body, 1), session, metadata, config)


def asked_to_keep(body: bytes, session: Session, *metadata: tuple[str, str]) -> str:
    found = pb.GenerateRequest.FromString(retained(body, session, KEEPS, *metadata))
    found.ClearField("request_id")
    return str(found.kv_cache_retention.config_json)


def test_a_session_says_what_its_engine_is_to_keep() -> None:
    body = prompt(tokens=3, cache_salt_id=1, arrival_time=2.0).SerializeToString()
    kept = {
        "goes on": (Session("s"), Retention.whole(80, 60.0)),
        "is short": (Session("s", timeout_s=9.0), Retention.whole(80, 9.0)),
        "ends": (Session("s", final=True), Retention.whole(0)),
    }
    for session, retention in kept.values():
        assert asked_to_keep(body, session) == retention.json()
    assert asked_to_keep(body, Session("s"), ("x-dynamo-returning-tokens", "4")) == ""
    assert retained(body, Session("s"), AffinityConfig()) == body
    own = pb.KvCacheRetentionConfig(config_json="{}")
    said = prompt(arrival_time=2.0, kv_cache_retention=own).SerializeToString()
    assert asked_to_keep(said, Session("s")) == "{}", "its client knows better"
