"""Calls of tools in a model's answer, in the formats that model families write them in."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .markers import MarkerScanner


class ToolCall(NamedTuple):
    """`arguments` is JSON text, as OpenAI has it."""

    name: str
    arguments: str


class ToolCallFormat(NamedTuple):
    """Calls stand from `start` to `end`, or to the end of the answer where that is empty; several
    may follow each other. `read` makes calls of what is between, None if it is none."""

    start: str
    end: str
    read: Callable[[str, "Schemas"], list[ToolCall] | None]
    special: bool = False
    """the markers are special tokens, which a detokenizer leaves out by default"""
    bare: bool = False
    """an answer that begins with a brace may be a call without a marker"""


Schemas = Mapping[str, Mapping[str, Any]]
"""Of each tool's parameters, by its name."""


class ToolCallParser:
    """Takes the calls out of one answer. What looks like a call and is none stays text."""

    def __init__(self, form: ToolCallFormat, tools: Sequence[Mapping[str, Any]]) -> None:
        self._form = form
        self.special = form.special
        self._schemas = schemas_of(tools)
        self._scanner = MarkerScanner()
        self._inside = ""
        self._is_inside = False
        self._between = False  # calls, where white space does not count
        self._begun = False  # something but white space was said
        self._bare = False  # inside, and without a marker

    def feed(self, text: str) -> tuple[str, list[ToolCall]]:
        """Content, and the calls that were completed."""
        self._scanner.feed(text)
        content, calls = "", list[ToolCall]()
        if self._form.bare and not self._begun and (held := self._scanner.peek().lstrip()):
            self._begun = True
            if held[0] in "{[":
                self._is_inside = self._bare = True
        while True:
            if not self._is_inside:
                cut = self._scanner.take_until(self._form.start)
                content += self._said(cut.text)
                if not cut.found:
                    return content, calls
                self._is_inside, self._inside = True, ""
            if not self._form.end:
                self._inside += self._scanner.take_all()
                return content, calls
            cut = self._scanner.take_until(self._form.end)
            self._inside += cut.text
            if not cut.found:
                return content, calls
            content += self._end(self._form.end, calls)

    def flush(self) -> tuple[str, list[ToolCall]]:
        """The answer is over, perhaps within a call."""
        calls: list[ToolCall] = []
        if not self._is_inside:
            return self._said(self._scanner.take_all()), calls
        self._inside += self._scanner.take_all()
        return self._end("", calls), calls

    def _end(self, end: str, calls: list[ToolCall]) -> str:
        """Add the calls that were inside; text that was none."""
        inside, self._is_inside = self._inside, False
        found = self._form.read(inside, self._schemas)
        if not found:
            return ("" if self._bare else self._form.start) + inside + end
        calls += found
        self._between = True
        return ""

    def _said(self, text: str) -> str:
        return "" if self._between and not text.strip() else text


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The parameters' schemas of a request's tools, by name."""
    functions = (tool.get("function", {}) for tool in tools)
    return {str(each.get("name", "")): each.get("parameters") or {} for each in functions}


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
    calls = []
    for name, body in _FUNCTION.findall(text):
        properties = schemas.get(name, {}).get("properties") or {}
        arguments = {
            key: _typed(value.strip("\n"), properties.get(key) or {})
            for key, value in _PARAMETER.findall(body)
        }
        calls.append(ToolCall(name, json.dumps(arguments, ensure_ascii=False)))
    return calls or None


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


_HERMES = ToolCallFormat("<tool_call>", "</tool_call>", read_json_calls)
TOOL_CALL_PARSERS: dict[str, ToolCallFormat] = {
    "hermes": _HERMES,
    "qwen25": _HERMES,
    "qwen3": _HERMES,
    "qwen3_coder": ToolCallFormat("<tool_call>", "</tool_call>", read_xml_calls),
    "llama3_json": ToolCallFormat("<|python_tag|>", "", read_json_calls, special=True, bare=True),
    "mistral": ToolCallFormat("[TOOL_CALLS]", "", read_json_calls, special=True),
}
"""By the names that Dynamo has for them."""
