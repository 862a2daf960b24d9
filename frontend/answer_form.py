"""AnswerForm: the API in whose shape the answers to one request are written.

Whatever the form, an answer is made of the same deltas, by the same way.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from .openai import Answer, ApiError, Delta, Usage
from .sse_writer import PlainEvents, SseShape


class AnswerForm(Protocol):
    """Of one request, streamed or whole."""

    @property
    def shape(self) -> SseShape:
        """How its events are written."""
        ...

    @property
    def usage_in_each(self) -> bool:
        """Whether `chunk` gets the usage so far."""
        ...

    @property
    def with_usage(self) -> bool:
        """Whether its ending shows the usage."""
        ...

    @property
    def counts_reasoning(self) -> bool:
        """Whether its usage has the number of reasoning tokens."""
        ...

    @property
    def last(self) -> bytes:
        """What ends a stream."""
        ...

    def chunk(self, index: int, delta: Delta, usage: Usage | None = None) -> bytes:
        """What came of one choice; empty: nothing that this form shows."""
        ...

    def plain_events(self, index: int) -> PlainEvents | None:
        """What `chunk` writes around the texts of a choice, if nothing else comes of it. None: that
        is not always the same."""
        ...

    def ending(self, usage: Usage, nvext: dict[str, Any] | None) -> Iterable[bytes]:
        """Events after the last chunk of the last choice."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """An error after the first event."""
        ...

    def whole(
        self, choices: Sequence[Sequence[Delta]], usage: Usage, nvext: dict[str, Any] | None
    ) -> bytes:
        """The body of an answer that is not streamed, of each choice's deltas."""
        ...


class AnswerKind(NamedTuple):
    """`prefix` begins the ids of answers; `make` has their form: of the answer's id, the time, the
    model's name, the request, and what changes with the model or its engines."""

    prefix: str
    make: Callable[[str, int, str, Any, str | None], AnswerForm]


CHAT = AnswerKind("chatcmpl-", partial(Answer, kind="chat"))
COMPLETION = AnswerKind("cmpl-", partial(Answer, kind="completion"))
