"""Conversation: the messages of a chat as a template sees them, which note how far it looked.

A message is read when a template asks for it. What a template makes of the first ones is the same
in all conversations that begin with them, unless it asked for later ones, or how many there are.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2 import Undefined

Message = Mapping[str, Any]
ENDLESS = 1 << 62
"""As far as a template looks that asks where the messages end."""


class UnknownUseError(Exception):
    """A template does with messages what only a list of them can say."""


class Conversation:
    """`read` makes the message of a number; the first `settled` stay as they are, whatever comes.
    None: all do."""

    def __init__(
        self, count: int, read: Callable[[int], Message], settled: int | None = None
    ) -> None:
        self.count, self._read = count, read
        self.settled = count if settled is None else settled
        self._found: dict[int, Message] = {}
        self._numbers: dict[int, int] = {}
        self.reach = 0
        """how many messages have to be the same for all to be the same that was asked since it was
        set to 0"""

    def at(self, number: int) -> Message:
        """The message of this number, which is there."""
        self.reach = max(self.reach, number + 1)
        found = self._found.get(number)
        if found is None:
            found = self._found[number] = self._read(number)
            self._numbers[id(found)] = number
        return found

    def has(self, number: int) -> bool:
        """Whether there is one of this number, 0 or more."""
        there = number < self.count
        self.reach = max(self.reach, number + 1) if there else ENDLESS
        return there

    def end(self) -> int:
        """How many there are."""
        self.reach = ENDLESS
        return self.count

    def number_of(self, value: object) -> int | None:
        """The number of a message that was given out; None: it is none."""
        return self._numbers.get(id(value))


class Messages:
    """All messages from one on, as the list of them."""

    __slots__ = ("_conversation", "_first")

    def __init__(self, conversation: Conversation, first: int = 0) -> None:
        self._conversation, self._first = conversation, first

    def __len__(self) -> int:
        return max(self._conversation.end() - self._first, 0)

    def __bool__(self) -> bool:
        return self._conversation.has(self._first)

    def __iter__(self) -> Iterator[Message]:
        number, conversation = self._first, self._conversation
        while conversation.has(number):
            yield conversation.at(number)
            number += 1

    def __reversed__(self) -> Iterator[Message]:
        return reversed(self._all())

    def __contains__(self, value: object) -> bool:
        raise UnknownUseError("in")

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            first = key.start or 0
            if isinstance(first, int) and first >= 0 and key.stop is key.step is None:
                return Messages(self._conversation, self._first + first)
            return self._all()[key]
        if not isinstance(key, int):
            raise UnknownUseError(repr(key))  # such as a list's method
        number = key
        if number < 0:
            number += len(self)
        if number < 0 or not self._conversation.has(self._first + number):
            raise IndexError("list index out of range")
        return self._conversation.at(self._first + number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a list has such as it has
            raise AttributeError(name)
        raise UnknownUseError(name)

    def _all(self) -> list[Message]:
        conversation = self._conversation
        return [conversation.at(number) for number in range(self._first, conversation.end())]

    def _unknown(self, *_: object) -> Any:
        raise UnknownUseError

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _unknown
    __add__ = __radd__ = __mul__ = __rmul__ = __str__ = __repr__ = __format__ = _unknown
    __hash__ = None  # type: ignore[assignment]


def first_of(messages: Messages) -> int:
    """The number of the first of them. They have no public names, which a template could see."""
    return messages._first


class Place:
    """What a template has as `loop` in its loop over messages."""

    __slots__ = ("_messages", "index0")

    depth, depth0 = 1, 0

    def __init__(self, messages: Messages) -> None:
        self._messages, self.index0 = messages, 0

    @property
    def index(self) -> int:
        return self.index0 + 1

    @property
    def first(self) -> bool:
        return self.index0 == 0

    @property
    def last(self) -> bool:
        messages = self._messages
        return not messages._conversation.has(messages._first + self.index0 + 1)

    @property
    def length(self) -> int:
        return len(self._messages)

    @property
    def revindex(self) -> int:
        return self.length - self.index0

    @property
    def revindex0(self) -> int:
        return self.length - self.index

    @property
    def previtem(self) -> Any:
        return self._messages[self.index0 - 1] if self.index0 else Undefined("there is no previous")

    @property
    def nextitem(self) -> Any:
        return Undefined("there is no next item") if self.last else self._messages[self.index]

    def cycle(self, *values: Any) -> Any:
        return values[self.index0 % len(values)]
