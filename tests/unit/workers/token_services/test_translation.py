"""TensorRT-LLM's requests in the words of vLLM's and SGLang's services, byte for byte."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import sglang_scheduler_pb2, vllm_engine_pb2
from support.fake_engine import prompt

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.workers.dialects import encode_bias, for_decode, for_prefill
from dynamo_router.workers.token_services.open_engine import OpenEngineClient
from dynamo_router.workers.token_services.sglang import SglangClient
from dynamo_router.workers.token_services.vllm import VllmClient
from dynamo_router.workers.trtllm_proto import pb

GUIDES = pb.GuidedDecodingParams
CLIENTS = [VllmClient, SglangClient]
Client = type[VllmClient] | type[SglangClient] | type[OpenEngineClient]


def translated(client: Client, request: Any, dp_rank: int | None = None) -> bytes:
    body = request if isinstance(request, bytes) else request.SerializeToString()
    return client.translate(client.__new__(client), body, dp_rank)[1]


def everything(client: Client) -> Any:
    """What the service has a word for."""
    request = prompt("r1", 3)
    sampling = request.sampling_config
    sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p = 0.5, 0.75, 7, 0.25
    sampling.frequency_penalty, sampling.presence_penalty = 0.5, -0.5
    sampling.repetition_penalty, sampling.min_tokens = 1.5, 2
    request.output_config.logprobs = 2
    request.ignore_eos = request.include_stop_token_in_output = True
    request.stop.append("!")
    request.stop_token_ids.append(5)
    request.guided_decoding.guide_type = GUIDES.GUIDE_TYPE_JSON_SCHEMA
    request.guided_decoding.guide = '{"type": "boolean"}'
    return request


def test_all_that_vllm_can_be_asked() -> None:
    request = everything(VllmClient)
    request.sampling_config.seed = 2**40 + 9
    request.output_config.prompt_logprobs = 1
    expected = vllm_engine_pb2.GenerateRequest(request_id="r1", stream=True, data_parallel_rank=0)
    expected.tokenized.input_ids.extend([1, 2, 3])
    params = expected.sampling_params
    params.temperature, params.top_p, params.top_k, params.min_p = 0.5, 0.75, 7, 0.25
    params.frequency_penalty, params.presence_penalty = 0.5, -0.5
    params.repetition_penalty, params.max_tokens, params.min_tokens = 1.5, 4, 2
    params.stop.append("!")
    params.stop_token_ids.append(5)
    params.skip_special_tokens = params.spaces_between_special_tokens = True
    params.ignore_eos = params.include_stop_str_in_output = True
    params.logprobs, params.prompt_logprobs, params.seed = 2, 1, 9
    params.json_schema = '{"type": "boolean"}'
    assert translated(VllmClient, request, 0) == expected.SerializeToString(deterministic=True)


def test_all_that_sglang_can_be_asked() -> None:
    expected = sglang_scheduler_pb2.GenerateRequest(
        request_id="r1", stream=True, data_parallel_rank=0, return_logprob=True,
        logprob_start_len=-1, top_logprobs_num=2,
    )  # fmt: skip
    expected.tokenized.input_ids.extend([1, 2, 3])
    params = expected.sampling_params
    params.temperature, params.top_p, params.top_k, params.min_p = 0.5, 0.75, 7, 0.25
    params.frequency_penalty, params.presence_penalty, params.n = 0.5, -0.5, 1
    params.repetition_penalty, params.max_new_tokens, params.min_new_tokens = 1.5, 4, 2
    params.stop.append("!")
    params.stop_token_ids.append(5)
    params.skip_special_tokens = params.spaces_between_special_tokens = True
    params.ignore_eos = params.no_stop_trim = True
    params.json_schema = '{"type": "boolean"}'
    found = translated(SglangClient, everything(SglangClient), 0)
    assert found == expected.SerializeToString(deterministic=True)


def test_what_is_not_asked_is_neutral() -> None:
    """vLLM tells what is not there from 0 or knows that 0 is none; SGLang takes it for 0."""
    expected = vllm_engine_pb2.GenerateRequest(request_id="r1", stream=True)
    expected.tokenized.input_ids.extend([1, 2, 3])
    expected.sampling_params.max_tokens = 4
    assert translated(VllmClient, prompt("r1", 3)) == expected.SerializeToString()
    other = sglang_scheduler_pb2.GenerateRequest.FromString(
        translated(SglangClient, prompt("r1", 3))
    )
    params = other.sampling_params
    assert (params.temperature, params.top_p, params.top_k, params.n) == (1.0, 1.0, -1, 1)
    assert params.repetition_penalty == 1.0 and not other.HasField("data_parallel_rank")
    greedy = prompt("r1", 3)
    greedy.sampling_config.temperature = 0.0
    other = sglang_scheduler_pb2.GenerateRequest.FromString(translated(SglangClient, greedy))
    assert other.sampling_params.temperature == 0.0


GUIDED = {
    GUIDES.GUIDE_TYPE_JSON: ("json_object", True, "json_schema", '{"type": "object"}'),
    GUIDES.GUIDE_TYPE_REGEX: ("regex", "a+", "regex", "a+"),
    GUIDES.GUIDE_TYPE_EBNF_GRAMMAR: ("grammar", "a+", "ebnf_grammar", "a+"),
    GUIDES.GUIDE_TYPE_STRUCTURAL_TAG: ("structural_tag", "a+", "structural_tag", "a+"),
}


@pytest.mark.parametrize("kind", GUIDED)
def test_grammars(kind: int) -> None:
    request = prompt("r1", 3)
    request.guided_decoding.guide_type, request.guided_decoding.guide = kind, "a+"
    field, value, other, there = GUIDED[kind]
    one = vllm_engine_pb2.GenerateRequest.FromString(translated(VllmClient, request))
    assert one.sampling_params.WhichOneof("constraint") == field
    assert getattr(one.sampling_params, field) == value
    two = sglang_scheduler_pb2.GenerateRequest.FromString(translated(SglangClient, request))
    assert two.sampling_params.WhichOneof("constraint") == other
    assert getattr(two.sampling_params, other) == there


def test_a_bias_goes_by_token() -> None:
    body = prompt("r1", 3).SerializeToString() + encode_bias({5: -1.5, 900: 2.0}, 1000)
    one = vllm_engine_pb2.GenerateRequest.FromString(translated(VllmClient, body))
    assert dict(one.sampling_params.logit_bias) == {5: -1.5, 900: 2.0}
    two = sglang_scheduler_pb2.GenerateRequest.FromString(translated(SglangClient, body))
    assert dict(two.sampling_params.logit_bias) == {"5": -1.5, "900": 2.0}


def test_the_legs_of_a_request() -> None:
    body = prompt("r1", 3).SerializeToString()
    first = for_prefill(body, b'{"kv_transfer_params": {"do_remote_decode": true}}')
    one = vllm_engine_pb2.GenerateRequest.FromString(translated(VllmClient, first))
    assert one.kv_transfer_params_json == '{"do_remote_decode":true}'
    assert (one.sampling_params.max_tokens, one.stream) == (1, True)
    where = b'{"bootstrap_host": "h", "bootstrap_port": 8998, "bootstrap_room": 2147483647}'
    then = for_decode(body, where)
    two = sglang_scheduler_pb2.GenerateRequest.FromString(translated(SglangClient, then))
    params = sglang_scheduler_pb2.DisaggregatedParams(**json.loads(where))
    assert two.disaggregated_params == params and two.sampling_params.max_new_tokens == 4


@pytest.mark.parametrize(
    "given",
    [
        b'{"kv_transfer_params": {}}', b"[", b"[]", b'{"bootstrap_port": "x"}',
        b'{"bootstrap_room": 2147483648}', b'{"bootstrap_host": 1}', b'{"bootstrap_room": true}',
    ],
)  # fmt: skip
def test_a_leg_in_other_words_than_sglangs_is_refused(given: bytes) -> None:
    """A client may have made it up."""
    leg = for_decode(prompt("r1", 3).SerializeToString(), given)
    with pytest.raises(InvalidRequestError, match="handoff is none of SGLang"):
        translated(SglangClient, leg)


def _set(change: Callable[[Any], object]) -> Any:
    request = prompt("r1", 3)
    change(request)
    return request


REFUSED: dict[str, Callable[[Any], object]] = {
    "num_return_sequences": lambda r: setattr(r.sampling_config, "num_return_sequences", 2),
    "beam search": lambda r: setattr(r.sampling_config, "beam_width", 2),
    "multimodal input": lambda r: r.multimodal_input.image_data.append(b"x"),
    "prompt tuning": lambda r: setattr(r.prompt_tuning_config, "embedding_table", b"x"),
    "bad words": lambda r: r.bad.append("x"),
    "a LoRA adapter": lambda r: setattr(r.lora_config, "task_id", 1),
    "no_repeat_ngram_size": lambda r: setattr(r.sampling_config, "no_repeat_ngram_size", 2),
    "logits": lambda r: setattr(r.output_config, "return_context_logits", True),
    "a cache salt": lambda r: setattr(r, "cache_salt_id", 0),
    "max_tokens is 0": lambda r: setattr(r, "max_tokens", 0),
    "JSON schema": lambda r: (
        setattr(r.guided_decoding, "guide_type", GUIDES.GUIDE_TYPE_JSON_SCHEMA),
        setattr(r.guided_decoding, "guide", "{"),
    ),
    "GUIDE_TYPE_UNSPECIFIED": lambda r: setattr(r.guided_decoding, "guide", "x"),
    "guided decoding by 77": lambda r: setattr(r.guided_decoding, "guide_type", 77),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("client", CLIENTS)
def test_what_has_no_word_is_refused_by_name(client: Client, what: str) -> None:
    with pytest.raises(InvalidRequestError, match=what):
        translated(client, _set(REFUSED[what]))


@pytest.mark.parametrize("what", ["a seed", "logprobs of the prompt"])
def test_what_sglang_alone_has_no_word_for(what: str) -> None:
    request = prompt("r1", 3)
    if what == "a seed":
        request.sampling_config.seed = 0
    else:
        request.output_config.prompt_logprobs = 1
    with pytest.raises(InvalidRequestError, match=what):
        translated(SglangClient, request)
    translated(VllmClient, request)


@pytest.mark.parametrize("client", [*CLIENTS, OpenEngineClient])
@pytest.mark.parametrize("body", [b"\x0a\xff", b"\x12\x02\x12", b"\xff", b"\x12\x03\x0a\x01\xff"])
def test_what_is_no_request(client: Client, body: bytes) -> None:
    """The last one has a text in its prompt that is none: engines would fail of it."""
    with pytest.raises(InvalidRequestError, match=r"no trtllm\.GenerateRequest"):
        translated(client, prompt("r1", 3).SerializeToString() + body)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_field_with_the_prompts_number_and_another_type_is_none_of_it(client: Client) -> None:
    body = prompt("r1", 3).SerializeToString() + b"\x15\x12\x02\x05\x06\x11" + b"\xff" * 8
    found = client.messages.GenerateRequest.FromString(translated(client, body))
    assert list(found.tokenized.input_ids) == [1, 2, 3]


@pytest.mark.parametrize("client", CLIENTS)
@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=300),
    parts=st.integers(1, 3),
    name=st.text(max_size=20),
)
def test_prompts_of_any_size_and_encoding(
    client: Client, tokens: list[int], parts: int, name: str
) -> None:
    """A prompt may come in parts, as any message may."""
    request = prompt(name, 0)
    body = request.SerializeToString()
    for some in np.array_split(np.array(tokens, np.uint32), parts):
        more = pb.GenerateRequest()
        more.tokenized.input_token_ids.extend(some.tolist())
        body += more.SerializeToString()
    kind = client.messages.GenerateRequest
    found = kind.FromString(translated(client, body))
    assert (list(found.tokenized.input_ids), found.request_id) == (tokens, name)
