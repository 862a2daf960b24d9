"""An EngineRequest in the words of vllm.SamplingParams. Pure.

Source: vLLM's documentation and its own declarations (0.19 to 0.32).
"""

from typing import Any

import msgspec

from ...base.errors import InvalidRequestError
from ..serving import EngineRequest, unsupported
from .library import refuse_what_none_does

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty",
)  # fmt: skip
_LARGEST_SEED = 2**63 - 1


def sampling_params(request: EngineRequest) -> dict[str, Any]:
    """Arguments of SamplingParams; `structured_outputs` as arguments of StructuredOutputsParams.
    InvalidRequestError, naming it, for what vLLM has no word for."""
    refuse_what_none_does(request)
    for name in request.sampling:
        if name not in _SAMPLING:
            raise unsupported(name, name)
    if request.bad_token_ids:
        raise unsupported("bad_token_ids", "bad_token_ids")
    if (request.seed or 0) > _LARGEST_SEED:
        raise unsupported(f"a seed above {_LARGEST_SEED}", "seed")
    asked: dict[str, Any] = {
        **request.sampling,
        "n": request.answers,
        "max_tokens": request.max_tokens,
        "min_tokens": request.min_tokens,
        "ignore_eos": request.ignore_eos,
        "include_stop_str_in_output": request.keep_stop_token,
        # Stop strings are looked for in text; else the text would have no reader.
        "detokenize": bool(request.stop),
    }
    optional = {
        "seed": request.seed,
        "stop": list(request.stop) or None,
        "stop_token_ids": sorted(request.stop_token_ids) or None,
        "bad_words": list(request.bad) or None,
        "logprobs": request.logprobs,
        "logit_bias": dict(request.logit_bias) or None,
        "structured_outputs": _guide_of(request),
    }
    return asked | {name: value for name, value in optional.items() if value is not None}


def _guide_of(request: EngineRequest) -> dict[str, Any] | None:
    if request.guide is None:
        return None
    kind, guide = request.guide
    match kind:
        case "JSON":
            return {"json_object": True}
        case "JSON_SCHEMA":
            try:
                return {"json": msgspec.json.decode(guide)}
            except msgspec.DecodeError as error:
                text = f"the JSON schema of guided decoding: {error}"
                raise InvalidRequestError(text, field="guided_decoding") from None
        case "REGEX":
            return {"regex": guide}
        case "EBNF_GRAMMAR":
            return {"grammar": guide}
        case "STRUCTURAL_TAG":
            return {"structural_tag": guide}
    raise unsupported(f"guided decoding by {kind}", "guided_decoding")
