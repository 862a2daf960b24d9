"""A GenerateRequest as it is translated for a service that takes token ids. Pure.

In all of them the prompt is field 2, and its token ids are field 2 of that: it is passed on as the
bytes that it came as.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from ...base.errors import UNREADABLE, InvalidRequestError
from ..dialects import MAX_TOKENS, check_request, refuse, split_tokens
from ..trtllm_proto import guide_name, length_delimited, parts_of, pb

GUIDES = pb.GuidedDecodingParams
_TOKENIZED = pb.GenerateRequest.DESCRIPTOR.fields_by_name["tokenized"].number


class Asked(NamedTuple):
    """A request that was read."""

    message: Any
    """the GenerateRequest without its tokens"""
    prompt: bytes
    """the field with them, serialized"""
    prompt_tokens: int

    @property
    def max_tokens(self) -> int:
        return min(int(self.message.max_tokens), MAX_TOKENS)

    def encode(self, message: Any) -> bytes:
        """A request of the service, whose other fields are those of `message`, if the prompt is a
        field of the same number there."""
        rest: bytes = message.SerializeToString()
        return length_delimited(1, self.message.request_id.encode()) + self.prompt + rest


def read_request(request: bytes, engine: str, *, takes_salt: bool = False) -> Asked:
    """InvalidRequestError, naming it, for what none of these services has a word for. `takes_salt`:
    this one has one for a cache salt."""
    try:
        rest, _, prompt_tokens, _ = split_tokens(request)
        message = pb.GenerateRequest.FromString(rest)
        parts = list(parts_of(request, _TOKENIZED))
        for part in parts:  # it has a text, too, of which an engine would fail
            pb.TokenizedInput.FromString(part)
    except (DecodeError, ValueError):
        raise InvalidRequestError("the request is no trtllm.GenerateRequest") from None
    check_request(message, engine, disaggregated=True)
    sampling, output = message.sampling_config, message.output_config
    refuse(
        engine,
        {
            "a LoRA adapter by its number": message.HasField("lora_config"),
            "no_repeat_ngram_size": bool(sampling.no_repeat_ngram_size),
            "logits": output.return_context_logits or output.return_generation_logits,
            "a cache salt": message.HasField("cache_salt_id") and not takes_salt,
        },
    )
    prompt = b"".join(length_delimited(_TOKENIZED, part) for part in parts)
    return Asked(message, prompt, prompt_tokens)


def copy_set(source: Any, target: Any, names: tuple[str, ...]) -> None:
    """The fields of these names that are there."""
    for name in names:
        if source.HasField(name):
            setattr(target, name, getattr(source, name))


def set_guide(
    message: Any, params: Any, engine: str, fields: Mapping[Any, str], any_json: object
) -> None:
    """What holds the output to a grammar: in the field for its type, which has the guide.
    `any_json` is what the field of GUIDE_TYPE_JSON has."""
    if not message.HasField("guided_decoding"):
        return
    kind, guide = message.guided_decoding.guide_type, message.guided_decoding.guide
    if kind not in fields:
        raise InvalidRequestError(
            f"guided decoding by {guide_name(kind)} is not supported by {engine}"
        )
    if kind == GUIDES.GUIDE_TYPE_JSON_SCHEMA:
        try:
            msgspec.json.decode(guide)
        except UNREADABLE as error:
            raise InvalidRequestError(f"the JSON schema of guided decoding: {error}") from None
    setattr(params, fields[kind], any_json if kind == GUIDES.GUIDE_TYPE_JSON else guide)
