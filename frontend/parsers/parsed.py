"""What parsers find in an answer."""

from typing import NamedTuple, Protocol


class ToolCall(NamedTuple):
    """`arguments` is JSON text, as OpenAI has it."""

    name: str
    arguments: str


class Parsed(NamedTuple):
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


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
