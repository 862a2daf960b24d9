"""A chat answer's text, piece by piece, as content, reasoning and calls of tools."""

from typing import TYPE_CHECKING, Protocol

from .call_formats import TOOL_CALL_FORMATS
from .call_readers import read_json_calls
from .harmony import HarmonyOutput
from .reasoning import REASONING_FORMATS, ReasoningParser
from .tool_calls import JSON, Parsed, ToolCall, ToolCallParser

if TYPE_CHECKING:  # the shapes of OpenAI's errors come with it
    from ..openai import ToolChoice

GPT_OSS, HARMONY = "gpt_oss", "harmony"
"""One form, by its name among reasoning and among calls: whichever is given, both are found."""
REASONING_PARSERS = (*REASONING_FORMATS, GPT_OSS)
TOOL_CALL_PARSERS = (*TOOL_CALL_FORMATS, HARMONY)
"""Names, as Dynamo has them."""


class ChatOutput(Protocol):
    """Reads one answer, piece by piece."""

    @property
    def sees_special(self) -> bool:
        """Whether special tokens must be in the text, as the parts are marked by them."""
        ...

    def feed(self, text: str) -> Parsed:
        """The next piece."""
        ...

    def flush(self) -> Parsed:
        """The answer is over."""
        ...


class MarkedOutput:
    """One answer. What comes after the reasoning is looked through for calls."""

    def __init__(
        self, reasoning: ReasoningParser | None, calls: ToolCallParser | None, choice: "ToolChoice"
    ) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self._choice = choice
        self._forced: list[str] = []  # all pieces of a forced answer

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
            content = "" if calls else "".join(self._forced)
        elif self._calls is not None:
            rest, more = self._calls.flush()
            content, calls = content + rest, (*calls, *more)
        return Parsed(content, reasoning, calls)

    def _read(self, text: str) -> Parsed:
        if self._choice.forced:
            self._forced.append(text)
            return Parsed()
        if self._calls is None:
            return Parsed(text)
        content, calls = self._calls.feed(text)
        return Parsed(content, calls=tuple(calls))

    def _forced_calls(self) -> tuple[ToolCall, ...]:
        name, text = self._choice.name, "".join(self._forced).strip()
        if name is None:
            return tuple(read_json_calls(text, {}) or ())
        try:
            JSON.decode(text)
        except (ValueError, RecursionError):
            return ()  # cut short: what there is stays text
        return (ToolCall(name, text),)


def exclude_each_other(reasoning: str | None, tool_calls: str | None) -> bool:
    """Whether two parsers are of different forms of which one is for the whole answer."""
    whole = (reasoning == GPT_OSS, tool_calls == HARMONY)
    return None not in (reasoning, tool_calls) and whole[0] != whole[1]


def new_chat_output(
    reasoning: str | None,
    tool_calls: str | None,
    choice: "ToolChoice",
    prompt_tail: str,
    *,
    held: bool = False,
) -> ChatOutput | None:
    """By the names of the parsers that the model needs; None: its text is all there is.

    `prompt_tail`: how the prompt ends. `held`: the engine holds the answer to a guide.
    """
    if (reasoning == GPT_OSS or tool_calls == HARMONY) and not choice.forced:
        return HarmonyOutput(choice.tools)
    thinking = None
    if reasoning is not None and reasoning != GPT_OSS:
        form = REASONING_FORMATS[reasoning]
        thinking = ReasoningParser(form, prompt_tail, held=held or choice.forced)
    calls = None
    if tool_calls is not None and choice.tools and not choice.forced:
        calls = ToolCallParser(TOOL_CALL_FORMATS[tool_calls], choice.tools)
    if thinking is None and calls is None and not choice.forced:
        return None
    return MarkedOutput(thinking, calls, choice)
