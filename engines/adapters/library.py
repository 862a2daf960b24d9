"""The libraries of engines: whether they are there, what none does, how all give logprobs."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ...base.errors import ConfigError
from ...workers.dialects import TokenLogprob
from ..serving import EngineRequest, unsupported


def load_library(name: str, extra: str) -> Any:
    """A module of a library. ConfigError, saying how it is installed, if it is not."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
            raise ConfigError(f"{name} cannot be loaded: {error}") from None
        top = name.partition(".")[0]
        text = f"{top} is not installed: pip install 'dynamo-router[{extra}]'"
        raise ConfigError(text) from None
    except ImportError as error:
        raise ConfigError(f"{name} cannot be loaded: {error}") from None


def cannot_run(library: str, model: str, error: Exception) -> ConfigError:
    """The error where a library cannot make an engine of a model."""
    text = f"{library} cannot run {model}: {type(error).__name__}: {error}"
    return ConfigError(text, key="model")


def refuse_what_none_does(request: EngineRequest) -> None:
    """InvalidRequestError, naming it, for what no library is asked for."""
    for what in request.others:
        raise unsupported(what, what)
    if request.prompt_logprobs is not None:
        raise unsupported("logprobs of the prompt", "prompt_logprobs")
    if request.phase or request.handoff is not None:
        raise unsupported("disaggregated serving", "disaggregated_params")
    if request.lora_name is not None:
        raise unsupported("a LoRA adapter", "lora_config")


def token_logprobs(tokens: Sequence[int], given: Sequence[Any], most: int) -> list[TokenLogprob]:
    """Of each token. `given` has for each a map from token ids to what has a `logprob`, the token's
    own among them, or the token's own number; `most`: how many of the likeliest to pass on."""
    return [_one(token, each, most) for token, each in zip(tokens, given, strict=False)]


def _one(token: int, given: Any, most: int) -> TokenLogprob:
    if not isinstance(given, dict):
        return TokenLogprob(token, float(given))
    by_token = {int(each): float(entry.logprob) for each, entry in given.items()}
    top = sorted(by_token.items(), key=lambda pair: -pair[1])[:most]
    return TokenLogprob(token, by_token[token], top)
