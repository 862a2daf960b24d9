"""Calls of tools as model families write them, each as a reader of what is between markers.

A reader returns None for what is no call.
"""

import ast
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

from .tool_calls import JSON, Schemas, ToolCall


def read_json_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """An object {"name", "arguments" or "parameters"}, or a list of them; several objects may
    have white space or semicolons between them."""
    calls, at = list[ToolCall](), 0
    text = text.strip()
    while at < len(text):
        try:
            found, at = JSON.raw_decode(text, at)
            for each in found if isinstance(found, list) else [found]:
                if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                    return None
                calls.append(
                    _written(each["name"], each.get("arguments", each.get("parameters", {})))
                )
        except (ValueError, RecursionError):
            return None
        while at < len(text) and text[at] in "; \n\r\t":
            at += 1
    return calls


def _pairs(head: re.Pattern[str], end: str, text: str) -> list[tuple[str, str]]:
    """What `head` says in its group, and the text from there to `end`, of each that has an end.

    The time is that of one walk through the text, however many have none: a `.*?` would look for
    the end again behind each head.
    """
    found, at = list[tuple[str, str]](), 0
    while (begun := head.search(text, at)) and (to := text.find(end, begun.end())) >= 0:
        found.append((begun[1], text[begun.end() : to]))
        at = to + len(end)
    return found


# No head goes beyond the next marker, so that none is looked at twice.
_FUNCTION = re.compile(r"<function=([^<>\s]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>")


def read_xml_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """<function=NAME><parameter=KEY>VALUE</parameter>...</function>: a value is JSON unless the
    tool's schema calls it a string."""
    return _all_of(
        [
            _typed_call(name, _pairs(_PARAMETER, "</parameter>", body), schemas)
            for name, body in _pairs(_FUNCTION, "</function>", text)
        ]
    )


def _typed_call(name: str, given: list[tuple[str, str]], schemas: Schemas) -> ToolCall | None:
    properties = _object(_object(schemas.get(name)).get("properties"))
    arguments = {key: _typed(value.strip("\n"), properties.get(key)) for key, value in given}
    try:
        return _written(name, arguments)
    except (ValueError, RecursionError):
        return None


def _object(schema: Any) -> Mapping[str, Any]:
    """A part of a tool's schema, which is a client's: where it should be an object and is none, it
    says nothing."""
    return schema if isinstance(schema, Mapping) else {}


def _typed(text: str, schema: Any) -> Any:
    if _object(schema).get("type") == "string":
        return text
    try:
        return JSON.decode(text)
    except (ValueError, RecursionError):
        return text


def read_named_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """As newer models of Mistral write: NAME[ARGS]{...}, or NAME{...}, each behind a marker of its
    own but the first; older ones write a list of JSON objects."""
    if text.lstrip()[:1] in ("[", "{"):
        return read_json_calls(text, schemas)
    calls = []
    for part in text.split("[TOOL_CALLS]"):
        name, brace, arguments = part.partition("{")
        name = name.strip().removesuffix("[ARGS]").partition("[CALL_ID]")[0]
        calls.append(_call(name, brace + arguments))
    return _all_of(calls)


_DEEPSEEK = re.compile("(<｜tool▁call▁begin｜>)")


def read_deepseek_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """Between markers of their own, NAME, a separator, and arguments; V3 and R1 have `function`
    before the name, and the arguments in a fenced block."""
    calls = []
    for _, body in _pairs(_DEEPSEEK, "<｜tool▁call▁end｜>", text):
        name, _, arguments = body.partition("<｜tool▁sep｜>")
        if name.strip() == "function":
            name, _, arguments = arguments.partition("\n")
            arguments = arguments.strip().removeprefix("```json").removesuffix("```")
        calls.append(_call(name, arguments))
    return _all_of(calls)


_KIMI = re.compile(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?([^\s:<]+)(?::\d+)?\s*"
    r"<\|tool_call_argument_begin\|>"
)


def read_kimi_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """functions.NAME:INDEX and arguments, between markers of their own."""
    found = _pairs(_KIMI, "<|tool_call_end|>", text)
    return _all_of([_call(name, arguments) for name, arguments in found])


_GLM_ARGUMENT = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>")


def read_glm_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> for each argument, typed by
    the tool's schema as `read_xml_calls` has it."""
    name = text.partition("<arg_key>")[0].strip()
    if name not in schemas:
        return None
    return _all_of([_typed_call(name, _pairs(_GLM_ARGUMENT, "</arg_value>", text), schemas)])


MAX_PYTHON = 32 << 10
"""Characters that are read as Python: some 0.1 s, in which no other request has a turn."""


def read_python_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """A Python list of calls, [NAME(KEY=VALUE), ...], whose values are literals. Text longer than
    MAX_PYTHON is none."""
    text = text.strip().removesuffix("<|python_end|>")
    if len(text) > MAX_PYTHON:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            found = ast.parse(text.strip(), mode="eval").body
        if not isinstance(found, ast.List):
            return None
        return _all_of([_python_call(each) for each in found.elts])
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _python_call(node: ast.expr) -> ToolCall | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            return None
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return _written(ast.unparse(node.func), arguments)


def _written(name: str, arguments: Any) -> ToolCall:
    """A call whose arguments were read; ValueError or RecursionError if they are no JSON."""
    if isinstance(arguments, str):
        text = arguments
    else:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        if not _is_text(text):  # half of a surrogate pair, which only an escape can say
            text = json.dumps(arguments)
    if not _is_text(name + text):
        raise ValueError("no text")
    return ToolCall(name, text)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _call(name: str, arguments: str) -> ToolCall | None:
    """None unless the name is one word, and the arguments are a JSON object."""
    name, arguments = name.strip(), arguments.strip() or "{}"
    try:
        found = JSON.decode(arguments)
    except (ValueError, RecursionError):
        return None
    is_call = isinstance(found, dict) and len(name.split()) == 1
    return ToolCall(name, arguments) if is_call else None


def _all_of(calls: list[ToolCall | None]) -> list[ToolCall] | None:
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None
