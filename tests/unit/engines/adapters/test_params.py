"""Requests in the words of TensorRT-LLM and vLLM: a wish is passed on, or refused by its name."""

from typing import Any

import pytest

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.engines.adapters import trtllm_params, vllm_params
from dynamo_router.engines.serving import EngineRequest
from dynamo_router.engines.serving.request import trtllm_request
from dynamo_router.workers.trtllm_proto import pb

KNOWN = {
    "n", "max_tokens", "min_tokens", "seed", "stop", "stop_token_ids", "bad", "bad_token_ids",
    "include_stop_str_in_output", "ignore_eos", "logprobs", "guided_decoding", "detokenize",
    "temperature", "top_p", "top_k", "min_p", "top_p_decay", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "no_repeat_ngram_size",
}  # fmt: skip


def asked(**wanted: Any) -> EngineRequest:
    message = pb.GenerateRequest(max_tokens=9, **wanted)
    message.tokenized.input_token_ids.extend([1, 2, 3])
    return trtllm_request(message, "a", None, None)


def trtllm(request: EngineRequest) -> dict[str, Any]:
    return trtllm_params.sampling_params(request, KNOWN)


PLAIN = {"beam_width": 1, "num_return_sequences": 1, "length_penalty": 1.0}


@pytest.mark.parametrize(
    ("wanted", "for_trtllm", "for_vllm"),
    [
        ({"sampling_config": {"temperature": 0.5, "top_p": 0.25, "top_k": 5}},
         {"temperature": 0.5, "top_p": 0.25, "top_k": 5},
         {"temperature": 0.5, "top_p": 0.25, "top_k": 5}),
        ({"sampling_config": {"temperature": 0.0}},
         {"temperature": 1.0, "top_k": 1}, {"temperature": 0.0}),
        ({"sampling_config": {"num_return_sequences": 3, "seed": 7}},
         {"n": 3, "seed": 7}, {"n": 3, "seed": 7}),
        ({"sampling_config": {"seed": 0, "min_tokens": 4}},
         {"seed": 0, "min_tokens": 4}, {"seed": 0, "min_tokens": 4}),
        ({"sampling_config": {"repetition_penalty": 1.5, "presence_penalty": -1.0}},
         {"repetition_penalty": 1.5, "presence_penalty": -1.0},
         {"repetition_penalty": 1.5, "presence_penalty": -1.0}),
        ({"stop": ["x"], "stop_token_ids": [5, 4], "include_stop_token_in_output": True},
         {"stop": ["x"], "stop_token_ids": [4, 5], "include_stop_str_in_output": True},
         {"stop": ["x"], "stop_token_ids": [4, 5], "include_stop_str_in_output": True,
          "detokenize": True}),
        ({"ignore_eos": True, "bad": ["y"]},
         {"ignore_eos": True, "bad": ["y"]}, {"ignore_eos": True, "bad_words": ["y"]}),
        ({"output_config": {"logprobs": 2}}, {"logprobs": 2}, {"logprobs": 2}),
        ({"guided_decoding": {"guide_type": 1}},
         {"guided_decoding": {"json_object": True}}, {"structured_outputs": {"json_object": True}}),
        ({"guided_decoding": {"guide_type": 2, "guide": '{"type": "object"}'}},
         {"guided_decoding": {"json": '{"type": "object"}'}},
         {"structured_outputs": {"json": {"type": "object"}}}),
        ({"guided_decoding": {"guide_type": 3, "guide": "a+"}},
         {"guided_decoding": {"regex": "a+"}}, {"structured_outputs": {"regex": "a+"}}),
    ],
)  # fmt: skip
def test_wishes_are_passed_on(
    wanted: dict[str, Any], for_trtllm: dict[str, Any], for_vllm: dict[str, Any]
) -> None:
    request = asked(**wanted)
    assert trtllm(request) == {"max_tokens": 9, "detokenize": False} | for_trtllm
    plain = vllm_params.sampling_params(asked())
    assert vllm_params.sampling_params(request) == plain | for_vllm


@pytest.mark.parametrize(
    ("wanted", "named", "who"),
    [
        ({"sampling_config": {"top_p_decay": 0.5}}, "top_p_decay", [vllm_params]),
        ({"sampling_config": {"no_repeat_ngram_size": 3}}, "no_repeat_ngram_size", [vllm_params]),
        ({"sampling_config": {"top_p_min": 0.5}}, "top_p_min", [trtllm_params, vllm_params]),
        ({"sampling_config": {"seed": 2**63}}, "a seed above", [vllm_params]),
        ({"bad_token_ids": [4]}, "bad_token_ids", [vllm_params]),
        ({"embedding_bias": [0.5]}, "logit_bias", [trtllm_params]),
        ({"lora_config": {"task_id": 3}}, "a LoRA adapter", [trtllm_params, vllm_params]),
        ({"output_config": {"prompt_logprobs": 1}}, "logprobs of the prompt",
         [trtllm_params, vllm_params]),
        ({"output_config": {"return_context_logits": True}}, "return_context_logits",
         [trtllm_params, vllm_params]),
        ({"disaggregated_params": {"request_type": 1}}, "disaggregated serving",
         [trtllm_params, vllm_params]),
        ({"lookahead_config": {}}, "lookahead_config", [trtllm_params, vllm_params]),
        ({"guided_decoding": {"guide": "x"}}, "guided decoding by UNSPECIFIED",
         [trtllm_params, vllm_params]),
        ({"guided_decoding": {"guide_type": 77}}, "guided decoding by 77",
         [trtllm_params, vllm_params]),
    ],
)  # fmt: skip
def test_what_an_engine_cannot_do_is_refused_by_name(
    wanted: dict[str, Any], named: str, who: list[Any]
) -> None:
    request = asked(**wanted)
    for module in (trtllm_params, vllm_params):
        more = (KNOWN,) if module is trtllm_params else ()
        if module in who:
            with pytest.raises(InvalidRequestError, match=f"{named}.* is not supported"):
                module.sampling_params(request, *more)
        else:
            module.sampling_params(request, *more)


def test_a_schema_that_is_none_is_refused() -> None:
    request = asked(guided_decoding={"guide_type": 2, "guide": "{"})
    with pytest.raises(InvalidRequestError, match="the JSON schema"):
        vllm_params.sampling_params(request)


def test_words_that_say_nothing_without_beams_are_no_wishes() -> None:
    assert trtllm(asked(sampling_config=PLAIN)) == trtllm(asked())


def test_biases_are_passed_to_vllm_by_token() -> None:
    found = vllm_params.sampling_params(asked(embedding_bias=[0.0, 2.5, 0.0, -100.0]))
    assert found["logit_bias"] == {1: 2.5, 3: -100.0}
