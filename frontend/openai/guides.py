"""What a request holds its answer to: the one guide among its fields, in the engines' terms.

Sources: OpenAI's `response_format`; vLLM's `structured_outputs` and the older `guided_*` fields.
Kinds are those of `trtllm.GuidedDecodingParams`.
"""

from typing import Any, NamedTuple, Protocol

import msgspec

from .errors import ApiError

MOST_CHOICES_HELD = 1024
"""Texts of a `choice`."""
MOST_GUIDE_CHARS = 2 << 20
"""Of a guide: each answer's request to an engine has it."""
TEXT = "text"
_encode = msgspec.json.Encoder().encode


class Guide(NamedTuple):
    """`kind` is a GuideType without its prefix, `guide` what it is to be; `field` asks for it."""

    field: str
    kind: str
    guide: str


class JsonSchema(msgspec.Struct, frozen=True):
    name: str
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`structures` and `triggers`, or `format`, are those of a structural tag."""

    type: str
    json_schema: JsonSchema | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's; the last ones say how, and cannot be passed to engines."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    # ----
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


GUIDING = (
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar",
)  # fmt: skip
"""Fields of a request that hold its answer to something."""


class Guided(Protocol):
    """A request with those fields."""

    response_format: ResponseFormat | None
    structured_outputs: StructuredOutputs | None
    guided_json: str | dict[str, Any] | None
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None


def guide_of(request: Guided) -> Guide | None:
    """None: the answer is free. ApiError 400, naming the field, for what is no guide or for two."""
    found = [
        each
        for each in (
            _of_format(request.response_format),
            _of_structured(request.structured_outputs),
            _of_json("guided_json", request.guided_json),
            _of_text("guided_regex", "REGEX", request.guided_regex),
            _of_choice("guided_choice", request.guided_choice),
            _of_text("guided_grammar", "EBNF_GRAMMAR", request.guided_grammar),
        )
        if each is not None
    ]
    if len(found) > 1:
        first, second = found[0].field, found[1].field
        raise ApiError(400, f"{second} and {first} exclude each other", param=second)
    if not found:
        return None
    _check_length(found[0].field, found[0].guide)
    return found[0]


def _of_format(form: ResponseFormat | None) -> Guide | None:
    field = "response_format"
    if form is None or form.type == TEXT:
        return None
    if form.type == "json_object":
        return _of_json(field, {"type": "object"})
    if form.type == "json_schema":
        if form.json_schema is None:
            raise ApiError(400, "response_format.json_schema is missing", param=field)
        return _of_json(field, form.json_schema.schema or {})
    if form.type == "structural_tag":
        if form.format is None and form.structures is None:
            raise ApiError(400, "response_format has neither format nor structures", param=field)
        names = ("type", "structures", "triggers", "format")
        given = {name: value for name in names if (value := getattr(form, name)) is not None}
        return Guide(field, "STRUCTURAL_TAG", _encode(given).decode())
    known = "text, json_object, json_schema or structural_tag"
    raise ApiError(400, f"response_format.type {form.type!r:.80} is not {known}", param=field)


def _of_structured(given: StructuredOutputs | None) -> Guide | None:
    if given is None:
        return None
    field = "structured_outputs"
    for name in _UNSUPPORTED_WAYS:
        if getattr(given, name):
            raise ApiError(400, f"{field}.{name} is not supported", param=f"{field}.{name}")
    tag = given.structural_tag
    if isinstance(tag, dict):
        tag = _encode(tag).decode()
    found = [
        each
        for each in (
            _of_json(f"{field}.json", given.json),
            _of_text(f"{field}.regex", "REGEX", given.regex),
            _of_choice(f"{field}.choice", given.choice),
            _of_text(f"{field}.grammar", "EBNF_GRAMMAR", given.grammar),
            _of_json(f"{field}.json_object", {"type": "object"} if given.json_object else None),
            _of_text(f"{field}.structural_tag", "STRUCTURAL_TAG", tag),
        )
        if each is not None
    ]
    if len(found) != 1:
        names = "json, regex, choice, grammar, json_object, structural_tag"
        text = f"{field} needs exactly one of {names}"
        raise ApiError(400, text, param=field)
    return found[0]


_UNSUPPORTED_WAYS = tuple(
    name
    for name in StructuredOutputs.__struct_fields__
    if name.startswith("disable_") or name == "whitespace_pattern"
)


def _of_json(field: str, schema: str | dict[str, Any] | None) -> Guide | None:
    """A JSON schema, which may also be given as text."""
    if schema is None:
        return None
    if isinstance(schema, str):
        _check_length(field, schema)
        try:
            _SCHEMA.decode(schema)  # as it stands: its parts as objects would take long to make
            return Guide(field, "JSON_SCHEMA", msgspec.json.format(schema, indent=-1))
        except (msgspec.DecodeError, RecursionError) as error:
            raise ApiError(400, f"{field} is no JSON schema: {error}", param=field) from None
    return Guide(field, "JSON_SCHEMA", _encode(schema).decode())


_SCHEMA = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _check_length(field: str, text: str) -> None:
    if len(text) > MOST_GUIDE_CHARS:
        raise ApiError(400, f"{field} has more than {MOST_GUIDE_CHARS} characters", param=field)


def _of_text(field: str, kind: str, text: str | None) -> Guide | None:
    if text is None:
        return None
    if not text:
        raise ApiError(400, f"{field} is empty", param=field)
    return Guide(field, kind, text)


def _of_choice(field: str, texts: list[str] | None) -> Guide | None:
    """A grammar: that is what most kinds of engines take."""
    if texts is None:
        return None
    if not texts or len(texts) > MOST_CHOICES_HELD or not all(texts):
        text = f"{field} must have 1 to {MOST_CHOICES_HELD} texts, none of them empty"
        raise ApiError(400, text, param=field)
    return Guide(field, "EBNF_GRAMMAR", "root ::= " + " | ".join(map(_quoted, texts)))


def _quoted(text: str) -> str:
    """A literal of EBNF as xgrammar, llguidance and llama.cpp read it."""
    return '"' + "".join(_ESCAPED.get(each, each) for each in text) + '"'


_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
