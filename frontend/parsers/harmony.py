"""Harmony, the form of gpt-oss's answers: messages on channels, with special tokens around them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .markers import MarkerScanner
from .tool_calls import JSON, Parsed, ToolCall

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, _CHANNEL)
"""of a message; a model that forgot to end one begins the next one all the same"""
_OPENINGS = (_START, _CHANNEL, _MESSAGE, "to=")
"""what an answer begins with; the prompt has its role already"""
_LONGEST = max(map(len, _OPENINGS))
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTIONS = "functions."


class _Head(NamedTuple):
    """Of a message: who it is for, if not the user, and its channel."""

    recipient: str
    channel: str


class HarmonyOutput:
    """One answer. `analysis` is reasoning, and so is text for tools that the client did not name;
    `functions.NAME` is called; the rest is content, also between calls (`commentary`).

    Text without messages, as other models write, is content as it is.
    """

    sees_special = True

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._callable = bool(tools)
        self._scanner = MarkerScanner()
        self._opening = True  # nothing but white space came
        self._plain = False  # these are no messages
        self._written: list[str] = []  # of a head, as far as it came
        self._head: _Head | None = None
        self._arguments: list[str] = []

    def feed(self, text: str) -> Parsed:
        """The next piece."""
        self._scanner.feed(text)
        content, reasoning, calls = "", "", list[ToolCall]()
        while True:
            if self._opening and not self._open():
                break
            if self._plain:
                content += self._scanner.take_all()
                break
            if self._head is None:
                cut = self._scanner.take_until(_MESSAGE)
                self._written.append(cut.text)
                if not cut.found:
                    break
                self._head, self._written = _read_head("".join(self._written)), []
            cut = self._scanner.take_until(*_ENDS)
            text, thought = self._say(self._head, cut.text)
            content, reasoning = content + text, reasoning + thought
            if not cut.found:
                break
            content += self._end(self._head, calls)
            self._head, self._opening = None, cut.found not in (_START, _CHANNEL)
            self._written = [] if self._opening else [cut.found]
        return Parsed(content, reasoning, tuple(calls))

    def flush(self) -> Parsed:
        """The answer is over; engines leave out the token that ended it."""
        left, calls = self._scanner.take_all(), list[ToolCall]()
        if self._head is None:
            written = "".join(self._written) + left
            return Parsed("" if written.lstrip().startswith("<|") else written)  # of no message
        content, reasoning = self._say(self._head, left)
        return Parsed(content + self._end(self._head, calls), reasoning, tuple(calls))

    def _open(self) -> bool:
        """Whether it is known what comes: a head, or text that is no message."""
        held = self._scanner.begun(_LONGEST)
        for opening in _OPENINGS:
            if held.startswith(opening):
                self._opening = False
                return True
            if opening.startswith(held) and not self._scanner.is_blank:
                return False
        self._opening, self._plain = False, True
        return True

    def _say(self, head: _Head, text: str) -> tuple[str, str]:
        """Content and reasoning; arguments are kept until they are whole."""
        if self._calls(head):
            self._arguments.append(text)
            return "", ""
        return ("", text) if head.recipient or head.channel == "analysis" else (text, "")

    def _calls(self, head: _Head) -> bool:
        return self._callable and head.recipient.startswith(_FUNCTIONS)

    def _end(self, head: _Head, calls: list[ToolCall]) -> str:
        """Add the call that a message was; its text, if that is no JSON."""
        if not self._calls(head):
            return ""
        arguments, self._arguments = "".join(self._arguments).strip() or "{}", []
        try:
            JSON.decode(arguments)
        except (ValueError, RecursionError):
            return arguments
        calls.append(ToolCall(head.recipient.removeprefix(_FUNCTIONS), arguments))
        return ""


def _read_head(text: str) -> _Head:
    recipient, channel = _RECIPIENT.search(text), _CHANNEL_NAME.search(text)
    return _Head(recipient[1] if recipient else "", channel[1] if channel else "")
