"""MessagePieces: what a chat template writes of each message, where that does not depend on others.

Most templates go through the messages once and keep nothing from one to the next. Where the syntax
tree proves that (`loop_of`), one rendering shows what is written of each kind of message, and
conversations of any length are put together from that.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import nodes

from .template_text import Shape, TextPiece, marked, pieces_of

LEAST_MESSAGES = 3
"""Of fewer, one is the first or the second, and the last."""
MOST_HEADS, MOST_KINDS, MOST_ROLE_CHARS = 64, 128, 64
"""First messages, and kinds of others behind each, that are kept; and characters of their roles."""
_SELF = 1
"""In pieces of a message that is not the first: its own content. 0: that of the first one."""
_FIRST, _LAST, _PARITY = "first", "last", "parity"
_NUMBERS = {"index0": 0, "index": 1}
"""Of the first time through a loop."""


class MessageLoop(NamedTuple):
    """Of a template whose messages do not depend on each other."""

    node: nodes.For
    has_last: bool
    """what is written of the last one may be another than were it not the last"""
    has_parity: bool
    """what is written of every other one may"""
    has_near: bool
    """the roles of the one before and of the one behind it matter; before the first is the last"""


def loop_of(tree: nodes.Template, is_messages: Callable[[nodes.Node], bool]) -> MessageLoop | None:
    """The loop in which a template that passes contents on writes all messages, each by itself:
    what it writes depends on the message, the first one, and its place as MessageLoop says. None:
    that is not proven. `is_messages`: whether an expression stands for all of them, or some.

    Names that are set within a loop are gone when it comes round again, so only a namespace keeps
    something.
    """
    loops = [loop for loop in tree.find_all(nodes.For) if is_messages(loop.iter)]
    if len(loops) != 1 or loops[0] not in tree.body:
        return None
    loop = loops[0]
    within = [part for each in loop.body for part in (each, *each.find_all(nodes.Node))]
    near = [item for item in map(_role_nearby, within) if item is not None]
    if loop.test is not None or loop.else_:
        return None
    if not _sees_the_first_only(tree, [loop, *near], is_messages):
        return None
    if any(isinstance(part, nodes.NSRef | nodes.Break) for part in within):
        return None
    if sum(map(is_messages, within)) != len(near) or not _counts_all(loop, near):
        return None
    fields = [field for field in map(_loop_field, within) if field is not None]
    names = [part for part in within if isinstance(part, nodes.Name) and part.name == "loop"]
    if len(names) != len(fields) or not {*fields} <= {_FIRST, _LAST, *_NUMBERS}:
        return None
    uses = [use for use in map(_number_use, within) if use is not None]
    if len(uses) + len(near) != sum(field in _NUMBERS for field in fields):
        return None
    return MessageLoop(loop, _LAST in fields, _PARITY in uses, bool(near))


def _role_nearby(node: nodes.Node) -> nodes.Getitem | None:
    """The message before, or behind, the one of a loop's number, if that is its role."""
    if not isinstance(node, nodes.Getattr | nodes.Getitem):
        return None
    item = node.node
    if isinstance(node, nodes.Getattr):
        is_role = node.attr == "role"
    else:
        is_role = isinstance(node.arg, nodes.Const) and node.arg.value == "role"
    if not is_role or not isinstance(item, nodes.Getitem) or not _is_name(item.node, "messages"):
        return None
    number = item.arg
    if not isinstance(number, nodes.Add | nodes.Sub) or not _is_number(number.right, 1):
        return None
    return item if _loop_field(number.left) == "index0" else None


def _counts_all(loop: nodes.For, near: Sequence[nodes.Node]) -> bool:
    """Whether the numbers of those are of this loop, and it counts the messages from the first."""
    inner = {id(part) for each in loop.find_all(nodes.For) for part in each.find_all(nodes.Node)}
    is_whole = _is_name(loop.iter, "messages")
    return not near or (is_whole and not any(id(part) in inner for part in near))


def _sees_the_first_only(
    tree: nodes.Template, others: Sequence[nodes.Node], is_messages: Callable[[nodes.Node], bool]
) -> bool:
    """Whether, but for these others, the first message, or all behind it, is all that is taken of
    them by number, and how many there are does not matter once there are more."""
    for part in (tree, *tree.find_all(nodes.Node)):
        if isinstance(part, nodes.Assign) and _is_name(part.target, "messages"):
            return False
        if any(part is each for each in others) or not any(
            map(is_messages, part.iter_child_nodes())
        ):
            continue
        if isinstance(part, nodes.Getitem):
            if not (_is_name(part.node, "messages") and _takes_the_first(part.arg)):
                return False
        elif isinstance(part, nodes.Assign | nodes.If):
            if is_messages(part.node if isinstance(part, nodes.Assign) else part.test):
                continue
            return False  # a name for them in its place
        elif not isinstance(part, nodes.Not | nodes.Test):
            return False
    return True


def _takes_the_first(arg: nodes.Node) -> bool:
    """By its number, or what is behind it."""
    if isinstance(arg, nodes.Slice):
        return _is_number(arg.start, 1) and arg.stop is None and arg.step is None
    return _is_number(arg, 0)


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _loop_field(node: nodes.Node) -> str | None:
    """Which field of a loop that is."""
    if isinstance(node, nodes.Getattr) and _is_name(node.node, "loop"):
        return node.attr
    return None


def _number_use(node: nodes.Node) -> str | None:
    """What is asked of a loop's number: whether it is the first time round, or every other."""
    if isinstance(node, nodes.Mod) and _loop_field(node.left) in _NUMBERS:
        return _PARITY if _is_number(node.right, 2) else None
    if isinstance(node, nodes.Compare) and len(node.ops) == 1:
        field, other = _loop_field(node.expr), node.ops[0]
        if field in _NUMBERS and _is_number(other.expr, _NUMBERS[field]):
            return _FIRST if other.op in ("eq", "ne", "gt", "gteq", "lt", "lteq") else None
    return None


def _is_number(node: nodes.Node | None, number: int) -> bool:
    return isinstance(node, nodes.Const) and type(node.value) is int and node.value == number


class _Kind(NamedTuple):
    """The facts of a message by which a template writes it in one way or another."""

    role: str
    has_content: bool
    is_first: bool
    is_last: bool
    is_odd: bool
    near: tuple[str, str | None] | None
    """roles of those before and behind it"""


class _Head:
    """What is written of conversations with this first message."""

    def __init__(self, skipped: int, before: list[TextPiece], behind: list[TextPiece]) -> None:
        """`skipped`: messages that the loop does not go through; `before` and `behind` it."""
        self.skipped, self.before, self.behind = skipped, before, behind
        self.kinds: dict[_Kind, list[TextPiece]] = {}


class MessagePieces:
    """Of a template, by a rendering with a mark where each message begins and where they end."""

    def __init__(
        self,
        loop: MessageLoop,
        mark: str,
        render: Callable[[Sequence[Mapping[str, Any]], bool], str],
    ) -> None:
        self._loop, self._mark, self._render = loop, mark, render
        self._heads: dict[tuple[str, bool, bool], _Head] = {}

    def of_shape(self, shape: Shape, prompted: bool) -> list[TextPiece] | None:
        """The pieces of a conversation; None: of one that is too short, or has odd roles. Raises
        what the rendering does."""
        if len(shape) < LEAST_MESSAGES:
            return None
        found = self._put_together(shape, prompted)
        if found is None and all(len(role) <= MOST_ROLE_CHARS for role, _ in shape):
            self._learn(shape, prompted)
            found = self._put_together(shape, prompted)
        return found

    def _put_together(self, shape: Shape, prompted: bool) -> list[TextPiece] | None:
        head = self._heads.get((*shape[0], prompted))
        return None if head is None else self._texts(head, shape, head.skipped)

    def _texts(self, head: _Head, shape: Shape, begin: int) -> list[TextPiece] | None:
        """The pieces of the messages from this number on, and what comes behind them; before the
        first of the loop what comes before that."""
        made: list[TextPiece] = []
        text = ""
        if begin == head.skipped:
            text, made = head.before[-1].before, head.before[:-1]
        for number in range(begin, len(shape)):
            pieces = head.kinds.get(self._kind(shape, number, head))
            if pieces is None:
                return None
            for before, nth, left, right in pieces[:-1]:
                made.append(TextPiece(text + before, number if nth else 0, left, right))
                text = ""
            text += pieces[-1].before
        end, *rest = head.behind
        return [*made, end._replace(before=text + end.before), *rest]

    def _kind(self, shape: Shape, number: int, head: _Head) -> _Kind:
        loop, is_end = self._loop, number == len(shape) - 1
        near = None
        if loop.has_near:
            near = shape[number - 1][0], None if is_end else shape[number + 1][0]
        odd = loop.has_parity and bool((number - head.skipped) % 2)
        is_first = number == head.skipped
        return _Kind(*shape[number], is_first, loop.has_last and is_end, odd, near)

    def _learn(self, shape: Shape, prompted: bool) -> None:
        messages, mark = marked(shape)
        before, *each, behind = self._render(messages, prompted).split(self._mark)
        skipped = len(shape) - len(each)
        if skipped > 1:
            return  # what the loop goes through is not there
        key = (*shape[0], prompted)
        if (head := self._heads.get(key)) is None:
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            head = _Head(skipped, pieces_of(before, mark), pieces_of(behind, mark))
            self._heads[key] = head
        for number, text in enumerate(each, skipped):
            kind = self._kind(shape, number, head)
            if kind in head.kinds:
                continue
            if len(head.kinds) >= MOST_KINDS:
                return
            head.kinds[kind] = [
                piece if piece.nth < 0 else piece._replace(nth=_SELF if piece.nth else 0)
                for piece in pieces_of(text, mark)
            ]
