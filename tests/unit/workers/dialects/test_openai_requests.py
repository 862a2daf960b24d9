"""TensorRT-LLM's requests in the words of engines over HTTP."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.fake_engine import prompt

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.workers.dialects import for_decode, for_prefill
from dynamo_router.workers.dialects.openai_requests import EngineKind, request_of
from dynamo_router.workers.trtllm_proto import pb

GUIDES = pb.GuidedDecodingParams
NOT_VLLM = [EngineKind.LLAMA, EngineKind.SGLANG, EngineKind.TRTLLM]


def body_of(request: Any, kind: EngineKind = EngineKind.COMPLETIONS) -> dict[str, Any]:
    return request_of(request.SerializeToString(), kind, "tiny")[1]


def everything() -> Any:
    request = prompt("r1", 3)
    request.sampling_config.temperature = 0.5
    request.sampling_config.top_k = 7
    request.sampling_config.repetition_penalty = 1.5
    request.sampling_config.seed = 9
    request.output_config.logprobs = 2
    request.ignore_eos = True
    request.stop.append("!")
    request.guided_decoding.guide_type = GUIDES.GUIDE_TYPE_JSON_SCHEMA
    request.guided_decoding.guide = '{"type": "boolean"}'
    return request


def test_in_the_words_of_vllm() -> None:
    request = everything()
    request.sampling_config.min_tokens = 2
    request.stop_token_ids.append(5)
    request.cache_salt_id = 0
    assert body_of(request) == {
        "model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4, "stream": True,
        "stream_options": {"include_usage": True}, "return_token_ids": True,
        "return_tokens_as_token_ids": True, "logprobs": 2, "temperature": 0.5, "top_k": 7,
        "repetition_penalty": 1.5, "seed": 9, "ignore_eos": True, "min_tokens": 2, "stop": ["!"],
        "stop_token_ids": [5], "cache_salt": "0",
        "structured_outputs": {"json": {"type": "boolean"}},
    }  # fmt: skip


def test_in_the_words_of_llama() -> None:
    body = body_of(everything(), EngineKind.LLAMA)
    assert body.pop("response_fields")
    assert body == {
        "prompt": [1, 2, 3], "n_predict": 4, "stream": True, "return_tokens": True,
        "cache_prompt": True, "timings_per_token": True, "n_probs": 2, "temperature": 0.5,
        "top_k": 7, "repeat_penalty": 1.5, "seed": 9, "ignore_eos": True, "stop": ["!"],
        "json_schema": {"type": "boolean"},
    }  # fmt: skip


def test_in_the_words_of_sglang() -> None:
    request = everything()
    request.sampling_config.min_tokens = 2
    request.stop_token_ids.append(5)
    request.include_stop_token_in_output = True
    assert body_of(request, EngineKind.SGLANG) == {
        "input_ids": [1, 2, 3], "stream": True, "rid": "r1", "return_logprob": True,
        "top_logprobs_num": 2,
        "sampling_params": {
            "temperature": 0.5, "top_k": 7, "repetition_penalty": 1.5, "sampling_seed": 9,
            "ignore_eos": True, "stop": ["!"], "max_new_tokens": 4, "min_new_tokens": 2,
            "stop_token_ids": [5], "no_stop_trim": True, "json_schema": '{"type": "boolean"}',
        },
    }  # fmt: skip


def test_in_the_words_of_tensorrt_llm() -> None:
    """Nothing that its server does not know: it refuses the rest."""
    request = prompt("r1", 3)
    request.sampling_config.temperature = 0.5
    assert body_of(request, EngineKind.TRTLLM) == {
        "model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4, "stream": True,
        "stream_options": {"include_usage": True}, "detokenize": False, "temperature": 0.5,
    }  # fmt: skip
    request.output_config.logprobs = 1
    with pytest.raises(InvalidRequestError, match="logprobs is not supported"):
        body_of(request, EngineKind.TRTLLM)


@pytest.mark.parametrize(
    "kind, fields",
    [
        (EngineKind.COMPLETIONS, b'{"kv_transfer_params": {"do_remote_decode": true}}'),
        (EngineKind.SGLANG, b'{"bootstrap_host": "h", "bootstrap_port": 1, "bootstrap_room": 2}'),
        (EngineKind.TRTLLM, b'{"disaggregated_params": {"request_type": "context_only"}}'),
    ],
)
def test_a_leg_has_the_fields_of_its_engine(kind: EngineKind, fields: bytes) -> None:
    request = prompt("r1", 3).SerializeToString()
    whole = request_of(request, kind, "tiny")[1]
    for leg in (for_prefill(request, fields, limited=False), for_decode(request, fields)):
        body = request_of(leg, kind, "tiny")[1]
        added = {key: body[key] for key in body.keys() - whole.keys()}
        assert added == json.loads(fields)


@pytest.mark.parametrize("fields", [b"\xff", b"[]", b'{"model": "another"}', b'{"prompt": []}'])
@pytest.mark.parametrize("kind", [kind for kind in EngineKind if kind is not EngineKind.LLAMA])
def test_a_leg_changes_nothing_else(kind: EngineKind, fields: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="handoff is none of"):
        request_of(for_decode(prompt("r1", 3).SerializeToString(), fields), kind, "tiny")


def test_who_does_not_stream_asks_for_no_stream() -> None:
    request = prompt("r1", 3)
    request.streaming = False
    assert not body_of(request)["stream"] and "stream_options" not in body_of(request)


def adapter(request: Any) -> None:
    request.lora_config.task_id = 1


def salt(request: Any) -> None:
    request.cache_salt_id = 0


def beams(request: Any) -> None:
    request.sampling_config.beam_width = 2


def prompt_logprobs(request: Any) -> None:
    request.output_config.prompt_logprobs = 1


def least(request: Any) -> None:
    request.sampling_config.min_tokens = 1


def stop_ids(request: Any) -> None:
    request.stop_token_ids.append(1)


def regex(request: Any) -> None:
    request.guided_decoding.guide_type = GUIDES.GUIDE_TYPE_REGEX


def made_up(request: Any) -> None:
    request.guided_decoding.guide_type = 77


def bad_schema(request: Any) -> None:
    request.guided_decoding.guide_type = GUIDES.GUIDE_TYPE_JSON_SCHEMA
    request.guided_decoding.guide = "{"


def no_tokens(request: Any) -> None:
    request.max_tokens = 0


@pytest.mark.parametrize(
    "change, said, kinds",
    [
        (adapter, "LoRA", EngineKind),
        (beams, "beam search", EngineKind),
        (prompt_logprobs, "logprobs of the prompt", NOT_VLLM),
        (bad_schema, "JSON schema|guided decoding", EngineKind),
        (made_up, "guided decoding (by 77 )?is", EngineKind),
        (no_tokens, "max_tokens", EngineKind),
        (salt, "cache salt", NOT_VLLM),
        (least, "min_tokens", [EngineKind.LLAMA]),
        (stop_ids, "stop_token_ids", [EngineKind.LLAMA]),
        (regex, "GUIDE_TYPE_REGEX|guided decoding", [EngineKind.LLAMA, EngineKind.TRTLLM]),
    ],
)
def test_what_an_engine_has_no_word_for_is_refused_by_name(
    change: Callable[[Any], None], said: str, kinds: list[EngineKind]
) -> None:
    for kind in EngineKind:
        request = prompt("r1", 3)
        change(request)
        if kind in kinds:
            with pytest.raises(InvalidRequestError, match=said):
                body_of(request, kind)
        else:
            body_of(request, kind)


def test_bytes_that_are_no_request() -> None:
    with pytest.raises(InvalidRequestError):
        request_of(b"\xff\xff", EngineKind.COMPLETIONS, "tiny")
