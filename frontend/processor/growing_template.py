"""GrowingTemplate: a chat template that goes on from where it was left with a conversation's first
messages.

A template is a program, and most have one loop that writes the messages. What a time round this
loop writes, and leaves in namespaces for the next, depends on what it reads alone: messages, which
note how far it looked (`Conversation`), and names that were set before the loop. So where those are
the same, and no message was looked at that is new, what was written is the same and the loop begins
where it was left. What comes behind it is made anew each time; what comes before it, too, but for a
part that asks nothing of later messages: of that the names are kept.
"""

import marshal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, NamedTuple

from blake3 import blake3
from jinja2 import Template, Undefined
from jinja2.runtime import Macro
from jinja2.utils import Namespace

from .conversation import Conversation, Messages, Place, UnknownUseError, first_of
from .template_loop import ANY_LATER, BEGUN, FOUND, LAST_HIT, NOW, PAST, ROWS, Key, LoopParts

SHORT = 256
"""Characters of a value that is kept as it is."""
SMALL_BYTES = 200
"""Of such a value in tables, on average."""
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "gt": lambda left, right: left > right,
    "gteq": lambda left, right: left >= right,
    "lt": lambda left, right: left < right,
    "lteq": lambda left, right: left <= right,
}


class _NotKeptError(Exception):
    """A value that is not known to be the same when it is there again."""


class _NotHereError(Exception):
    """None of the points is where the template is; it has to begin with its beginning."""


class Begun(NamedTuple):
    """What was made before anything was asked of later messages."""

    text: bytes
    """a hash of what was written"""
    reach: int
    """how many messages have to be the same for that"""
    values: dict[str, Any]
    """of the names that are read behind it"""
    spaces: dict[str, dict[str, Any]]
    """the same of namespaces"""
    firsts: dict[str, int]
    """of names that stand for messages, the first one's number"""
    given: dict[str, str]
    """of names for what the template was given, the name that it had there"""
    dates: tuple[tuple[str, str], ...]
    """forms of the time, and what that was"""


class Head(NamedTuple):
    """What there is when the loop begins."""

    text: bytes
    """a hash of what was written before"""
    begun: Begun | None
    """from where on it has to be written again; None: all of it"""
    first: int
    """the number of the first message that the loop goes through"""
    values: dict[str, Any]
    """of the names that the loop reads, in a form that can be compared"""


class Point(NamedTuple):
    """Where a template was left: all that it wrote before stays, whatever messages come."""

    head: Head
    done: int
    """times that the loop went round"""
    state: dict[str, dict[str, Any]]
    """of namespaces, what they have there"""
    bounds: dict[Key, tuple[int, int]]
    """of numbers that were compared with those of messages, the least and the most that each may
    be, that all comparisons come out as they did; "" and a number stand for a search"""
    hits: tuple[int, ...]
    """by search, the last message before that it would find; -1: none"""

    @property
    def messages(self) -> int:
        """How many were written."""
        return self.head.first + self.done

    def size(self, *, without_head: bool) -> int:
        """Bytes that it takes, about."""
        count = len(self.bounds) + sum(map(len, self.state.values()))
        if not without_head:
            count += 2 * len(self.head.values)  # some are also in what was begun with
        return SMALL_BYTES * count


class Grown(NamedTuple):
    """What a template wrote."""

    used: int | None
    """which of the points it went on from"""
    text: list[str]
    """behind that one"""
    stays: int
    """how many of these parts are before the new point"""
    point: Point | None


class GrowingTemplate:
    """Of a template that is compiled of the tree that `loop` was found in. `rest` is compiled of
    its rest, `searches` of what is asked of each message of that name."""

    def __init__(
        self,
        loop: LoopParts,
        template: Template,
        rest: Template | None,
        searches: Sequence[tuple[str, Template]],
    ) -> None:
        self._loop, self._template, self._rest, self._searches = loop, template, rest, searches

    def render(
        self,
        conversation: Conversation,
        given: Mapping[str, Any],
        points: Sequence[Point],
        most_chars: int,
    ) -> Grown | None:
        """`points` are those that were kept of these messages, the furthest first; `given` is the
        template's context but for messages. None: the text is not to be had so, or is longer than
        `most_chars`, or the template refuses it."""
        begun = points[0].head.begun if points else None
        if begun is not None and begun.reach > points[0].messages:
            begun = None
        try:
            finder = _Finder(self._searches, conversation, points)
            if begun is not None and self._rest is not None and self._same(begun):
                with suppress(_NotHereError):
                    run = _Run(self._loop, conversation, given, points, finder)
                    context = {**given, "messages": Messages(conversation), **run.begin(begun)}
                    return run.rendered(self._rest, context, most_chars)
            run = _Run(self._loop, conversation, given, points, finder)
            context = {**given, "messages": Messages(conversation)}
            return run.rendered(self._template, context, most_chars)
        except Exception:  # it may fail in any way that Python may: it is to be asked for all
            return None

    def _same(self, begun: Begun) -> bool:
        """Whether it would begin so again."""
        now: Callable[[str], str] = self._template.globals[NOW]
        return all(now(form) == date for form, date in begun.dates)


class _Finder:
    """What a template's searches find."""

    def __init__(
        self,
        searches: Sequence[tuple[str, Template]],
        conversation: Conversation,
        points: Sequence[Point],
    ) -> None:
        self._searches, self._conversation = searches, conversation
        self._found: dict[int, tuple[bool, ...]] = {}
        self.none = (-1,) * len(searches)
        begin, hits = (points[0].messages, points[0].hits) if points else (0, self.none)
        self.last = self.after(hits, begin, conversation.count)
        """by search, the last message that it finds; -1: none"""

    def after(self, hits: tuple[int, ...], begin: int, end: int) -> tuple[int, ...]:
        """The same of the messages before `end`, where `hits` are those before `begin`."""
        if self._searches:
            for number in range(begin, end):
                found = self._at(number)
                if any(found):
                    pairs = zip(found, hits, strict=True)
                    hits = tuple(number if each else before for each, before in pairs)
        return hits

    def _at(self, number: int) -> tuple[bool, ...]:
        found = self._found.get(number)
        if found is None:
            message = self._conversation.at(number)
            found = self._found[number] = tuple(
                _asked(template, {name: message}) for name, template in self._searches
            )
        return found


def _asked(template: Template, given: dict[str, Any]) -> bool:
    context = template.new_context(given)
    for _ in template.root_render_func(context):
        pass
    return bool(context.vars[FOUND])


class _Run:
    """One rendering: what the template's calls in it do."""

    def __init__(
        self,
        loop: LoopParts,
        conversation: Conversation,
        given: Mapping[str, Any],
        points: Sequence[Point],
        finder: _Finder,
    ) -> None:
        self._loop, self._conversation, self._points = loop, conversation, points
        self._finder, self._hits, self._asked = finder, finder.none, 0
        self._given, self._names = given, {id(value): name for name, value in given.items()}
        self._now: Callable[[str], str] | None = None
        self._dates: list[tuple[str, str]] = []
        self._globals: Mapping[str, Any] = {}
        self._begun: Begun | None = None
        self._before, self._parts, self._is_rest = b"", 0, False
        self.text: list[str] = []
        self.used: int | None = None
        self.stays = 0
        self.point: Point | None = None
        self._bounds: dict[Key, tuple[int, int]] = {}
        self._reach = 0

    def rendered(
        self, template: Template, context: dict[str, Any], most_chars: int
    ) -> Grown | None:
        """By this template, in this context. None: it is longer than that."""
        self._globals = template.globals
        context |= {
            BEGUN: self._note_begun,
            ROWS: self._rows,
            PAST: self._past,
            LAST_HIT: self._last_hit,
            ANY_LATER: self._any_later,
        }
        if NOW in self._globals and NOW not in self._given:
            self._now = self._globals[NOW]
            context[NOW] = self._date
        self._conversation.reach = length = 0
        for part in template.root_render_func(template.new_context(context)):
            self.text.append(part)
            length += len(part)
            if length > most_chars:
                return None
        return Grown(self.used, self.text, self.stays, self.point)

    def _date(self, form: str) -> str:
        assert self._now is not None
        date = self._now(form)
        self._dates.append((form, date))
        return date

    def begin(self, begun: Begun) -> dict[str, Any]:
        """Names that there are where the template's rest begins."""
        self._begun, self._before, self._is_rest = begun, begun.text, True
        return {
            **begun.values,
            **{name: Namespace(space) for name, space in begun.spaces.items()},
            **{name: Messages(self._conversation, first) for name, first in begun.firsts.items()},
            **{name: self._given[other] for name, other in begun.given.items()},
        }

    def _note_begun(self, values: dict[str, Any]) -> None:
        """Note what was made so far, with the names that are read behind it."""
        self._before, self._parts = _hash("".join(self.text)), len(self.text)
        reach = self._conversation.reach
        if reach > self._conversation.settled:
            return
        kept: dict[str, Any] = {}
        firsts: dict[str, int] = {}
        given: dict[str, str] = {}
        spaces: dict[str, dict[str, Any]] = {}
        try:
            for name, value in values.items():
                if name == NOW or value is self._globals.get(name, self):
                    continue  # it is there again
                if type(value) is Undefined and name not in {*self._given, *self._globals}:
                    continue
                if type(value) is Messages:
                    firsts[name] = first_of(value)
                elif type(value) is Namespace:
                    space = value._Namespace__attrs
                    spaces[name] = {key: _small(each) for key, each in space.items()}
                elif (other := self._names.get(id(value))) is not None:
                    given[name] = other
                else:
                    kept[name] = _small(value)
        except _NotKeptError:
            return
        if len({id(values[name]) for name in spaces}) == len(spaces):
            dates = tuple(self._dates)
            self._begun = Begun(self._before, reach, kept, spaces, firsts, given, dates)

    def _rows(self, rows: object, values: dict[str, Any]) -> Iterator[tuple[Any, Place]]:
        """The messages of the loop, from where it is to begin, each with its place."""
        if not isinstance(rows, Messages):
            raise UnknownUseError
        first, conversation = first_of(rows), self._conversation
        place, head, spaces = Place(rows), None, _namespaces(values)
        try:
            text = _hash("".join(self.text[self._parts :]))
            head = Head(self._before + text, self._begun, first, self._frozen(values, spaces))
        except _NotKeptError:
            pass
        else:
            for number, point in enumerate(self._points):
                if self._goes_on(point, head, spaces):
                    self.used, head, place.index0 = number, point.head, point.done
                    self._restore(point, spaces)
                    self.text.clear()
                    break
        if self.used is None:
            if self._is_rest:
                raise _NotHereError
            if head is not None:
                self._leave(head, 0, spaces)
        while first + place.index0 < conversation.count:
            conversation.reach = 0
            yield conversation.at(first + place.index0), place
            self._reach = max(self._reach, conversation.reach)
            place.index0 += 1
            if head is not None and self._reach <= conversation.settled:
                self._leave(head, place.index0, spaces)

    def _leave(self, head: Head, done: int, spaces: dict[str, dict[str, Any]]) -> None:
        """Note that the loop can be left here."""
        try:
            state = {
                name: {
                    key: _small(each)
                    for key, each in space.items()
                    if (name, key) not in self._loop.compared
                }
                for name, space in spaces.items()
            }
        except _NotKeptError:
            return
        at = head.first + done
        self._hits, self._asked = self._finder.after(self._hits, self._asked, at), at
        self.point = Point(head, done, state, dict(self._bounds), self._hits)
        self.stays = len(self.text)

    def _goes_on(self, point: Point, head: Head, spaces: dict[str, dict[str, Any]]) -> bool:
        """Whether the loop would come to this point again."""
        before = point.head
        if before.text != head.text or before.first != head.first or before.values != head.values:
            return False
        for (name, attribute), (least, most) in point.bounds.items():
            if name:
                value = spaces[name].get(attribute)
            else:
                value = self._finder.last[int(attribute)]
            if type(value) is not int or not least <= value <= most:
                return False
        return True

    def _restore(self, point: Point, spaces: dict[str, dict[str, Any]]) -> None:
        for name, state in point.state.items():
            space = spaces[name]
            kept = {key: space[key] for key in space if (name, key) in self._loop.compared}
            space.clear()
            space.update(state)
            space.update(kept)
        self._bounds, self._hits, self._asked = dict(point.bounds), point.hits, point.messages

    def _frozen(self, values: dict[str, Any], spaces: dict[str, dict[str, Any]]) -> dict[str, Any]:
        found = {
            # A macro of another name reads what is not known.
            name: Macro if type(value) is Macro and value.name == name else self._form(value)
            for name, value in values.items()
            if name not in spaces
        }
        for name, space in spaces.items():
            found[name] = {
                key: None if (name, key) in self._loop.compared else self._form(value)
                for key, value in space.items()
            }
        return found

    def _form(self, value: Any) -> Any:
        """The same for values that are alike to a template."""
        kind = type(value)
        if value is None or kind in (bool, int, float):
            return kind, repr(value)
        if kind is str:
            return value if len(value) <= SHORT else (len(value), _hash(value))
        if kind is Undefined:
            return kind
        if kind is Messages:
            return kind, first_of(value)
        if (number := self._conversation.number_of(value)) is not None:
            if number >= self._conversation.settled:
                raise _NotKeptError
            return "message", number
        if (name := self._names.get(id(value))) is not None:
            return "given", name
        if kind in (dict, list, tuple):
            try:
                return kind, blake3(marshal.dumps(value, 0)).digest()
            except ValueError:
                raise _NotKeptError from None
        if isinstance(value, FunctionType | type):
            return value
        raise _NotKeptError

    def _past(self, name: str, attribute: str, how: str, number: int, other: Any) -> bool:
        """A comparison of a message's number with an attribute of a namespace."""
        found = _COMPARE[how](number, other)
        if type(other) is int:
            at_most = {"gt": number - 1, "gteq": number}  # of `other`, where it is so
            at_least = {"lt": number + 1, "lteq": number}
            if how in at_most:
                self._bind((name, attribute), found, at_most[how] + 1)
            else:
                self._bind((name, attribute), not found, at_least[how])
        else:
            self._bounds[name, attribute] = 0, -1
        return found

    def _bind(self, key: Key, below: bool, limit: int) -> None:
        """Note that a number has to be below a limit, or not."""
        least, most = self._bounds.get(key, (-(1 << 62), 1 << 62))
        self._bounds[key] = (least, min(most, limit - 1)) if below else (max(least, limit), most)

    def _last_hit(self, search: int, rows: object, _: object) -> list[tuple[Any, "_Found"]]:
        """The last message that this search finds in all of these; none if there is none."""
        if not isinstance(rows, Messages):
            raise UnknownUseError
        self._conversation.end()  # all of them were looked at
        hit = self._finder.last[search]
        if hit < first_of(rows):
            return []
        return [(self._conversation.at(hit), _Found(len(rows) - 1 - (hit - first_of(rows))))]

    def _any_later(self, search: int, rows: object, index: Any) -> bool:
        """Whether this search finds any from the `index`th of these messages on."""
        if not isinstance(rows, Messages) or type(index) is not int or index < 0:
            raise UnknownUseError
        limit = first_of(rows) + index
        later = self._finder.last[search] >= limit
        self._bind(("", str(search)), not later, limit)
        return later


class _Found(NamedTuple):
    """What a template has as `loop` where it goes through all messages from the end."""

    index0: int


def _namespaces(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is in those that are namespaces."""
    return {
        name: value._Namespace__attrs for name, value in values.items() if type(value) is Namespace
    }


def _small(value: Any) -> Any:
    """A value that a namespace may be given again."""
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) is Undefined:
        return Undefined()  # it would keep what it is no part of
    if type(value) is str and len(value) <= SHORT:
        return value
    raise _NotKeptError


def _hash(text: str) -> bytes:
    return blake3(text.encode("utf-8", "surrogatepass")).digest()
