"""Calls of tools in a model's answer: where they stand, and what is text around them."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from .markers import MarkerScanner


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


JSON = json.JSONDecoder(parse_constant=_refuse)
"""Without the NaN and Infinity that Python's own takes, and clients do not."""


class ToolCall(NamedTuple):
    """`arguments` is JSON text, as OpenAI has it."""

    name: str
    arguments: str


class Parsed(NamedTuple):
    """What a piece of an answer comes to."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


class ToolCallFormat(NamedTuple):
    """Calls stand from `start` to `end`, or to the end of the answer where that is empty; several
    may follow each other. `read` makes calls of what is between, None if it is none."""

    start: str
    end: str
    read: Callable[[str, "Schemas"], list[ToolCall] | None]
    special: bool = False
    """the markers are special tokens, which a detokenizer leaves out by default"""
    bare: bool = False
    """an answer that begins with a bracket may be a call without a marker"""


Schemas = Mapping[str, Mapping[str, Any]]
"""Of each tool's parameters, by its name."""


class ToolCallParser:
    """Takes the calls out of one answer. What looks like a call and is none stays text."""

    def __init__(self, form: ToolCallFormat, tools: Sequence[Mapping[str, Any]]) -> None:
        self._form = form
        self.special = form.special
        self._schemas = schemas_of(tools)
        self._scanner = MarkerScanner()
        self._inside: list[str] = []  # pieces of what may be calls
        self._is_inside = False
        self._between = False  # calls, where white space does not count
        self._begun = False  # text other than white space came
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
                content += self._content(cut.text)
                if not cut.found:
                    return content, calls
                self._is_inside, self._inside = True, []
            if not self._form.end:
                self._inside.append(self._scanner.take_all())
                return content, calls
            cut = self._scanner.take_until(self._form.end)
            self._inside.append(cut.text)
            if not cut.found:
                return content, calls
            content += self._end(self._form.end, calls)

    def flush(self) -> tuple[str, list[ToolCall]]:
        """The answer is over, perhaps within a call."""
        calls: list[ToolCall] = []
        if not self._is_inside:
            return self._content(self._scanner.take_all()), calls
        self._inside.append(self._scanner.take_all())
        return self._end("", calls), calls

    def _end(self, end: str, calls: list[ToolCall]) -> str:
        """Add the calls that were inside; text that was none."""
        inside, self._is_inside = "".join(self._inside), False
        self._inside.clear()
        found = self._form.read(inside, self._schemas)
        if not found:
            return ("" if self._bare else self._form.start) + inside + end
        calls += found
        self._between = True
        return ""

    def _content(self, text: str) -> str:
        return "" if self._between and not text.strip() else text


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The parameters' schemas of a request's tools, by name."""
    functions = (tool.get("function", {}) for tool in tools)
    return {str(each.get("name", "")): each.get("parameters") or {} for each in functions}
