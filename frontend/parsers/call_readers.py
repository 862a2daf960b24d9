"""Calls of tools as model families write them, each as a reader of what is between markers.

A reader returns None for what is no call.
"""

import ast
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

from .tool_calls import Schemas, ToolCall


def read_json_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """An object {"name", "arguments" or "parameters"}, or a list of them; several objects may
    have white space or semicolons between them."""
    decoder, calls, at = json.JSONDecoder(), list[ToolCall](), 0
    text = text.strip()
    while at < len(text):
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        for each in found if isinstance(found, list) else [found]:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                return None
            arguments = each.get("arguments", each.get("parameters", {}))
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            calls.append(ToolCall(each["name"], arguments))
        while at < len(text) and text[at] in "; \n\r\t":
            at += 1
    return calls


_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>(.*?)</parameter>", re.DOTALL)


def read_xml_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """<function=NAME><parameter=KEY>VALUE</parameter>...</function>: a value is JSON unless the
    tool's schema calls it a string."""
    calls = [
        _typed_call(name, _PARAMETER.findall(body), schemas)
        for name, body in _FUNCTION.findall(text)
    ]
    return calls or None


def _typed_call(name: str, given: list[tuple[str, str]], schemas: Schemas) -> ToolCall:
    properties = schemas.get(name, {}).get("properties") or {}
    arguments = {key: _typed(value.strip("\n"), properties.get(key) or {}) for key, value in given}
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
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


_DEEPSEEK = re.compile("<｜tool▁call▁begin｜>(.*?)<｜tool▁call▁end｜>", re.DOTALL)


def read_deepseek_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """Between markers of their own, NAME, a separator, and arguments; V3 and R1 have `function`
    before the name, and the arguments in a fenced block."""
    calls = []
    for body in _DEEPSEEK.findall(text):
        name, _, arguments = body.partition("<｜tool▁sep｜>")
        if name.strip() == "function":
            name, _, arguments = arguments.partition("\n")
            arguments = arguments.strip().removeprefix("```json").removesuffix("```")
        calls.append(_call(name, arguments))
    return _all_of(calls)


_KIMI = re.compile(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?([^\s:<]+)(?::\d+)?\s*"
    r"<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
    re.DOTALL,
)


def read_kimi_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """functions.NAME:INDEX and arguments, between markers of their own."""
    return _all_of([_call(name, arguments) for name, arguments in _KIMI.findall(text)])


_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def read_glm_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> for each argument, typed by
    the tool's schema as `read_xml_calls` has it."""
    name = text.partition("<arg_key>")[0].strip()
    if name not in schemas:
        return None
    return [_typed_call(name, _GLM_ARGUMENT.findall(text), schemas)]


def read_python_calls(text: str, schemas: Schemas) -> list[ToolCall] | None:
    """A Python list of calls, [NAME(KEY=VALUE), ...], whose values are literals."""
    text = text.strip().removesuffix("<|python_end|>")
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
    return ToolCall(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False))


def _call(name: str, arguments: str) -> ToolCall | None:
    """None unless the name is one word, and the arguments are a JSON object."""
    name, arguments = name.strip(), arguments.strip() or "{}"
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    is_call = isinstance(found, dict) and len(name.split()) == 1
    return ToolCall(name, arguments) if is_call else None


def _all_of(calls: list[ToolCall | None]) -> list[ToolCall] | None:
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None
