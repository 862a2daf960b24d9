"""ChatItems: what a body has of a conversation, as messages of a chat: each item is read when its
message is asked for, once for all APIs.

Items are an API's messages, or what it has in their place. One may make several messages of a chat,
or none, or go on with the last one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...server.dispatch import cut_items
from ..anthropic import add_message, check_end
from ..engine_requests import with_read_arguments
from ..openai import LONG_BODY, MOST_MESSAGES, ApiError, Turns, check_messages
from ..responses import add_item

MOST_BYTES = 1 << 20
"""Of a body that is read in one turn of the event loop."""
MOST_REST = 512 << 10
"""Of what such a body has beside its items, as an agent's tools: it is read in one step, which
holds the interpreter for a millisecond."""
MOST_ITEMS, MOST_STEPS = 1024, 128 << 10

Messages = list[dict[str, Any]]
_BETWEEN = b" \t\r\n,"
_ENTRY = msgspec.json.Decoder(dict[str, Any])


class ItemForm(NamedTuple):
    """How an API has conversations."""

    name: str
    key: bytes
    """of the list in a body"""
    add: Callable[[Turns, int, bytes], None]
    """Add the item of a number to a chat. ApiError 400, or what a decoder raises, if it is none."""
    check_end: Callable[[Turns], None]
    """ApiError 400 if a conversation may not end so."""
    merges: bool
    """whether an item may go on with the message of the one before"""
    usual_turn: int
    """items that a turn adds: the answer to the one before, and a question"""
    has_marks: bool
    """whether blocks have marks (`cache_control`) that nothing of a prompt depends on"""


def _add_chat_message(turns: Turns, at: int, raw: bytes) -> None:
    turns.messages.append(_ENTRY.decode(raw))


def _any_end(turns: Turns) -> None:
    pass


CHAT_ITEMS = ItemForm("chat", b"messages", _add_chat_message, _any_end, False, 2, False)
MESSAGES_ITEMS = ItemForm("messages", b"messages", add_message, check_end, True, 2, True)
RESPONSES_ITEMS = ItemForm("responses", b"input", add_item, _any_end, True, 3, False)


class ItemsApart(NamedTuple):
    """Where the items of a body are."""

    form: ItemForm
    rest: bytes
    """the body with an empty list in their place"""
    body: bytes
    """the same items without their marks, and where they are in it"""
    begin: int
    """of the first one"""
    ends: list[int]

    def raw(self, number: int) -> bytes:
        """The item of this number."""
        begin = self.ends[number - 1] if number else self.begin
        return self.body[begin : self.ends[number]].lstrip(_BETWEEN)

    def objects(self, begin: int) -> int:
        """How many objects there may be from a place on."""
        return self.body.count(b"{", begin, self.ends[-1])


def items_apart(body: bytes, form: ItemForm) -> ItemsApart | None:
    """Of a long body; None: of one that is short, too long, or is to be read in another way."""
    if not LONG_BODY < len(body) <= MOST_BYTES:
        return None
    found = cut_items(body, form.key, MOST_ITEMS, MOST_STEPS, form.has_marks)
    if found is None or len(found[0]) > MOST_REST:
        return None
    return ItemsApart(form, *found)


class KnownItems(NamedTuple):
    """What is known of a body's first items: that they are right, and where messages begin."""

    length: int
    starts: Sequence[int]
    """by message, the item that it begins with"""
    calls: Container[str]
    """ids of calls in them"""
    is_open: bool
    """whether the next item may become part of the last message"""


NOTHING_KNOWN = KnownItems(0, (), (), False)


class _AnyCall:
    """All ids: those of items that are known to be right."""

    def __contains__(self, call_id: object) -> bool:
        return True


class ChatItems:
    """The conversation of one body: `lead` is what comes before its items, a system's message.
    What raises raises ApiError, or what a decoder does, for an item that is none."""

    def __init__(self, apart: ItemsApart, known: KnownItems, lead: Messages) -> None:
        self._apart, self._lead, self._known = apart, lead, known.length
        self._new: Messages = []
        self._read: dict[int, Messages] = {}  # by the item that they begin with
        self.starts = list(known.starts)
        """by message, the item that it begins with"""
        self.calls: set[str] = set()
        """ids of calls in items that are not known"""
        self.is_open = known.is_open
        """whether a next item might become part of the last message"""
        if known.length < len(apart.ends):
            self._read_new(known)

    @property
    def messages(self) -> Messages:
        """Those that are new."""
        return self._new

    @property
    def settled(self) -> int:
        """How many messages are as they are, whatever comes behind the last item."""
        return len(self.starts) - self.is_open

    def message(self, number: int) -> Mapping[str, Any]:
        """As a template gets it."""
        new = number - (len(self.starts) - len(self._new))
        return self._new[new] if new >= 0 else self._known_message(number)

    def _known_message(self, number: int) -> Mapping[str, Any]:
        starts, begin = self.starts, self.starts[number]
        first, behind = bisect_left(starts, begin), bisect_right(starts, begin)
        if number == 0 and behind > 1 and self._lead:
            return _checked(self._lead)[0]  # nothing went on with it
        found = self._read.get(begin)
        if found is None:
            end = starts[behind] if behind < len(starts) else self._known
            turns = self._turns(begin, first, _AnyCall())
            for at in range(begin, max(end, begin + 1)):
                self._apart.form.add(turns, at, self._apart.raw(at))
            found = self._read[begin] = _checked(turns.messages)
        return found[number - first]

    def _read_new(self, known: KnownItems) -> None:
        apart, form, starts = self._apart, self._apart.form, self.starts
        begin = starts[-1] if known.is_open else known.length  # it is read again
        first = bisect_left(starts, begin)
        turns = self._turns(begin, first, known.calls)
        starts[first:] = [0] * len(turns.messages)
        for at in range(begin, len(apart.ends)):
            form.add(turns, at, apart.raw(at))
            starts += [at] * (first + len(turns.messages) - len(starts))
        form.check_end(turns)
        if not 0 < len(starts) <= MOST_MESSAGES:
            raise ApiError(400, "no messages, or too many", param="messages")
        self._new, self.calls = _checked(turns.messages), turns.calls
        self.is_open = form.merges and turns.is_open

    def _turns(self, begin: int, before: int, calls: Container[str]) -> Turns:
        """What an item may go on with, if it begins a message."""
        turns = Turns(before, calls)
        if not begin:
            turns.messages += map(dict, self._lead)
        return turns


def _checked(messages: Messages) -> Messages:
    """Messages as a template gets them. ApiError 400 for what is none."""
    check_messages(messages)
    return with_read_arguments(messages)
