"""A chat answer's text, piece by piece, as content, reasoning and calls of tools."""

import json
from typing import NamedTuple

from ..openai import ToolChoice
from .reasoning import REASONING_PARSERS, ReasoningParser
from .tool_calls import TOOL_CALL_PARSERS, ToolCall, ToolCallParser, read_json_calls


class Parsed(NamedTuple):
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


class ChatOutput:
    """One answer. What comes after the reasoning is looked through for calls."""

    def __init__(
        self, reasoning: ReasoningParser | None, calls: ToolCallParser | None, choice: ToolChoice
    ) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self._choice = choice
        self._forced = ""  # all that a forced answer said

    @property
    def sees_special(self) -> bool:
        """Whether special tokens must be in the text, as calls are marked by them."""
        return self._calls is not None and self._calls.special

    def feed(self, text: str) -> Parsed:
        """The next piece."""
        reasoning = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.feed(text)
        return self._read(text)._replace(reasoning=reasoning)

    def flush(self) -> Parsed:
        """The answer is over."""
        reasoning = text = ""
        if self._reasoning is not None:
            reasoning, text = self._reasoning.flush()
        parsed = self._read(text)
        content, calls = parsed.content, parsed.calls
        if self._choice.forced:
            calls = self._forced_calls()
            content = "" if calls else self._forced
        elif self._calls is not None:
            rest, more = self._calls.flush()
            content, calls = content + rest, (*calls, *more)
        return Parsed(content, reasoning, calls)

    def _read(self, text: str) -> Parsed:
        if self._choice.forced:
            self._forced += text
            return Parsed()
        if self._calls is None:
            return Parsed(text)
        content, calls = self._calls.feed(text)
        return Parsed(content, calls=tuple(calls))

    def _forced_calls(self) -> tuple[ToolCall, ...]:
        name, text = self._choice.name, self._forced.strip()
        if name is None:
            return tuple(read_json_calls(text, {}) or ())
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return ()  # cut short: what there is stays text
        return (ToolCall(name, text),)


def new_chat_output(
    reasoning: str | None, tool_calls: str | None, choice: ToolChoice, prompt_tail: str
) -> ChatOutput | None:
    """By the names of the parsers that the model needs; None: its text is all there is.

    `prompt_tail`: how the prompt ends.
    """
    thinking = None
    if reasoning is not None:
        thinking = ReasoningParser(REASONING_PARSERS[reasoning], prompt_tail)
    calls = None
    if tool_calls is not None and choice.tools and not choice.forced:
        calls = ToolCallParser(TOOL_CALL_PARSERS[tool_calls], choice.tools)
    if thinking is None and calls is None and not choice.forced:
        return None
    return ChatOutput(thinking, calls, choice)
