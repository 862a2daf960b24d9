"""What is read of a GenerateRequest, and what is left alone."""

import numpy as np
import pytest
from support.fake_engine import prompt

from dynamo_router.router.dispatch.generate_request import read_generate, with_request_id
from dynamo_router.runtime.errors import InvalidRequestError
from dynamo_router.workers.trtllm_proto import pb


def test_the_routing_facts() -> None:
    request = prompt("abc", 5, cache_salt_id=7)
    request.lora_config.task_id = 3
    request.sampling_config.num_return_sequences = 2
    facts = read_generate(request.SerializeToString())
    assert facts.token_ids.dtype == np.uint32
    assert facts.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert (facts.request_id, facts.max_tokens, facts.sequences) == ("abc", 4, 2)
    assert (facts.lora_name, facts.cache_namespace) == ("3", "7")


def test_absent_is_not_zero() -> None:
    plain = read_generate(prompt().SerializeToString())
    assert (plain.lora_name, plain.cache_namespace, plain.sequences) == (None, None, 1)
    salted = read_generate(prompt(cache_salt_id=0).SerializeToString())
    assert salted.cache_namespace == "0"


def test_tokens_use_all_32_bits() -> None:
    request = pb.GenerateRequest()
    request.tokenized.input_token_ids.extend([0, 2**32 - 1])
    assert read_generate(request.SerializeToString()).token_ids.tolist() == [0, 2**32 - 1]


@pytest.mark.parametrize("body", [b"\xff\xff", b"\x0a\x05ab", prompt().SerializeToString()[:-3]])
def test_junk_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="no trtllm.GenerateRequest"):
        read_generate(body)


@pytest.mark.parametrize("request_", [pb.GenerateRequest(), prompt(tokens=0)])
def test_an_empty_prompt_is_refused(request_: object) -> None:
    with pytest.raises(InvalidRequestError, match="empty prompt"):
        read_generate(request_.SerializeToString())  # type: ignore[attr-defined]


def test_images_and_prompt_tables_keep_prompts_apart() -> None:
    def namespace(*images: bytes, table: bytes = b"", **more: int) -> str | None:
        request = prompt(**more)
        request.multimodal_input.image_data.extend(images)
        request.prompt_tuning_config.embedding_table = table
        return read_generate(request.SerializeToString()).cache_namespace

    different = [
        namespace(),
        namespace(b"cat"),
        namespace(b"dog"),
        namespace(b"catdog"),
        namespace(b"cat", b"dog"),
        namespace(b"cat", cache_salt_id=1),
        namespace(table=b"cat"),
    ]
    assert len(set(different)) == len(different)
    assert namespace(b"cat") == namespace(b"cat")


@pytest.mark.parametrize("request_id", ["x", "é" * 100, "y" * 20000])
def test_an_id_is_replaced_without_touching_the_rest(request_id: str) -> None:
    request = prompt("old", 6, cache_salt_id=7)
    changed = pb.GenerateRequest.FromString(
        with_request_id(request.SerializeToString(), request_id)
    )
    assert changed.request_id == request_id
    changed.request_id = "old"
    assert changed == request
