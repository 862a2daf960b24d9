"""An EngineRequest in the words of tensorrt_llm.SamplingParams. Pure.

Source: the signatures that TensorRT-LLM documents for its LLM API (1.0 to 1.3).
"""

from collections.abc import Container
from typing import Any

from ..serving import EngineRequest, unsupported
from .library import refuse_what_none_does

_GUIDES = {
    "JSON_SCHEMA": "json",
    "REGEX": "regex",
    "EBNF_GRAMMAR": "grammar",
    "STRUCTURAL_TAG": "structural_tag",
}


def sampling_params(request: EngineRequest, known: Container[str]) -> dict[str, Any]:
    """Arguments of SamplingParams, where the installed one has those in `known`; `guided_decoding`
    as arguments of GuidedDecodingParams. InvalidRequestError, naming it, for what it cannot say."""
    refuse_what_none_does(request)
    if request.logit_bias:
        raise unsupported("logit_bias", "logit_bias")
    asked: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        # Clients have the tokenizer: text would have no reader.
        "detokenize": False,
        **request.sampling,
    }
    if asked.get("temperature") == 0:  # which some releases refuse: the likeliest token, always
        asked |= {"temperature": 1.0, "top_k": 1}
    optional = {
        "n": request.answers if request.answers > 1 else None,
        "seed": request.seed,
        "min_tokens": request.min_tokens or None,
        "stop": list(request.stop) or None,
        "stop_token_ids": sorted(request.stop_token_ids) or None,
        "bad": list(request.bad) or None,
        "bad_token_ids": sorted(request.bad_token_ids) or None,
        "include_stop_str_in_output": request.keep_stop_token or None,
        "ignore_eos": request.ignore_eos or None,
        "logprobs": request.logprobs,
        "guided_decoding": _guide_of(request),
    }
    asked |= {name: value for name, value in optional.items() if value is not None}
    for name in asked:
        if name not in known:
            raise unsupported(name, name)
    return asked


def _guide_of(request: EngineRequest) -> dict[str, Any] | None:
    if request.guide is None:
        return None
    kind, guide = request.guide
    if kind == "JSON":
        return {"json_object": True}
    if kind not in _GUIDES:
        raise unsupported(f"guided decoding by {kind}", "guided_decoding")
    return {_GUIDES[kind]: guide}
