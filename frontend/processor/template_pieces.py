"""TemplatePieces: what a chat template writes around the contents of messages, kept by roles.

A template is a program, and most only put contents between pieces that depend on roles alone.
Where its syntax tree proves that (`passes_contents_on`), one rendering shows the pieces, and
conversations of the same roles are put together from them.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from jinja2 import nodes

from .template_text import CONTENT, Shape, TextPiece, marked, pieces_of, taken_apart, written

MOST_MESSAGES = 64
"""Of a conversation: a longer one is rendered, some 10 us for each, as its next turn has another
shape again, and would take the place of many short ones."""
MOST_KEPT, MOST_ROLE_CHARS = 8192, 64
"""Messages of all shapes whose pieces are kept, and characters of their roles."""
_METHODS = frozenset(dir(dict))


class _Use(Enum):
    """What is done with a value."""

    FLOW = "it is written as it is, or a part of what is"
    TEST = "whether it is empty matters"
    LOOP = "its entries are gone through"
    ANY = "anything"


class _Kind(Enum):
    MESSAGES, MESSAGE, CONTENT, OTHER = range(4)


_LEAVES = (nodes.TemplateData, nodes.Const, nodes.Break, nodes.Continue)
_PLAIN = (
    nodes.Template, nodes.If, nodes.Compare, nodes.Operand, nodes.Not, nodes.Neg, nodes.Pos,
    nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.Slice, nodes.List,
    nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.Getattr, nodes.Getitem, nodes.Filter,
    nodes.Test, nodes.Call,
)  # fmt: skip
"""Of which it matters only what their parts are: those are values for anything."""
_PURE_CALLS = frozenset(("raise_exception", "namespace", "range", "dict"))
_SHAPE_FILTERS = frozenset(("length", "count"))
_SHAPE_TESTS = frozenset(
    ("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number")
)
_REFUSEDCONTENTS = frozenset(("self", "loop"))
_REFUSED_FILTERS = frozenset(("random", "attr"))
_REFUSED_FIELDS = frozenset(("previtem", "nextitem", "changed"))


def passes_contents_on(tree: nodes.Template) -> bool:
    """Whether all that a template makes of contents, which are text, is to write them, perhaps
    stripped, and to look whether they are empty; and nothing else of it varies but by its names."""
    proof = _Proof()
    while proof.learns(tree):
        pass
    return proof.is_consistent and proof.holds(tree, _Use.ANY)


def messages_in(tree: nodes.Template) -> Callable[[nodes.Node], bool]:
    """Whether an expression of a template stands for the list of messages, or a part of it, as far
    as that is seen."""
    proof = _Proof()
    while proof.learns(tree):
        pass
    return proof.is_messages


class _Proof:
    """Names stand for one kind of value all over a template; any other use of them is refused."""

    def __init__(self) -> None:
        self._kinds = {"messages": _Kind.MESSAGES}
        self.is_consistent = True

    def learns(self, tree: nodes.Template) -> bool:
        """Note what names stand for; whether anything was new."""
        known = len(self._kinds)
        for loop in tree.find_all(nodes.For):
            if self._kind(loop.iter) is _Kind.MESSAGES:
                self._note(loop.target, _Kind.MESSAGE)
        for assign in tree.find_all(nodes.Assign):
            kind = self._kind(assign.node)
            if kind is _Kind.OTHER and self._has_content(assign.node):
                kind = _Kind.CONTENT
            if kind is not _Kind.OTHER:
                self._note(assign.target, kind)
        return len(self._kinds) > known and self.is_consistent

    def is_messages(self, node: nodes.Node) -> bool:
        """Whether an expression stands for the list of messages, or a part of it."""
        return self._kind(node) is _Kind.MESSAGES

    def _note(self, target: nodes.Node, kind: _Kind) -> None:
        if not isinstance(target, nodes.Name):
            self.is_consistent = False
        elif self._kinds.setdefault(target.name, kind) is not kind:
            self.is_consistent = False

    def _has_content(self, node: nodes.Node) -> bool:
        if self._kind(node) is _Kind.CONTENT:
            return True
        return any(map(self._has_content, node.iter_child_nodes()))

    def _kind(self, node: nodes.Node) -> _Kind:
        if isinstance(node, nodes.Name):
            return self._kinds.get(node.name, _Kind.OTHER)
        if isinstance(node, nodes.Getattr | nodes.Getitem):
            base, field = self._kind(node.node), _field_of(node)
            if base is _Kind.MESSAGES and isinstance(node, nodes.Getitem):
                return base if isinstance(node.arg, nodes.Slice) else _Kind.MESSAGE
            if field == CONTENT:
                return _Kind.CONTENT
        return _Kind.OTHER

    def holds(self, node: nodes.Node, use: _Use) -> bool:
        """Whether a part of the template, of whose value this use is made, may stand in it."""
        kind = self._kind(node)
        if kind is not _Kind.OTHER:
            return self._may_be(node, kind, use)
        if isinstance(node, nodes.Name):
            return node.name not in _REFUSEDCONTENTS
        if isinstance(node, nodes.Getattr | nodes.Getitem):
            field = _field_of(node)
            if field in _REFUSED_FIELDS:
                return False
            if isinstance(node.node, nodes.Name) and node.node.name == "loop":
                return field is not None
            if self._kind(node.node) is _Kind.MESSAGE:  # a field that plain messages have or not
                return field is not None and field not in _METHODS and self._base_holds(node)
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name):
            if node.node.name not in _PURE_CALLS:
                return False
        if isinstance(node, nodes.Filter | nodes.Test):
            found = self._checks_holds(node, use)
            if found is not None:
                return found
        return self._parts_hold(node, use)

    def _may_be(self, node: nodes.Node, kind: _Kind, use: _Use) -> bool:
        if kind is _Kind.CONTENT:
            return use in (_Use.FLOW, _Use.TEST) and self._base_holds(node)
        if kind is _Kind.MESSAGES:
            return use in (_Use.LOOP, _Use.TEST) and self._base_holds(node)
        return False

    def _base_holds(self, node: nodes.Node) -> bool:
        """What a name, a field or an entry is taken from, and by which number."""
        if isinstance(node, nodes.Name):
            return True
        assert isinstance(node, nodes.Getattr | nodes.Getitem)
        if isinstance(node, nodes.Getitem) and not self.holds(node.arg, _Use.ANY):
            return False
        if self._kind(node.node) is _Kind.OTHER:
            return self.holds(node.node, _Use.ANY)
        return self._base_holds(node.node)

    def _checks_holds(self, node: nodes.Filter | nodes.Test, use: _Use) -> bool | None:
        """Of those that may be applied to what others may not; None: see the parts."""
        if node.node is None or node.name in _REFUSED_FILTERS:
            return False
        kind = self._kind(node.node)
        if isinstance(node, nodes.Test):
            if node.name in _SHAPE_TESTS and kind is not _Kind.OTHER:
                return self._base_holds(node.node)
        elif node.name in _SHAPE_FILTERS and kind is _Kind.MESSAGES:
            return self._base_holds(node.node)
        elif node.name == "trim" and not node.args and not node.kwargs:
            if use in (_Use.FLOW, _Use.TEST):
                return self.holds(node.node, use)
        return None

    def _parts_hold(self, node: nodes.Node, use: _Use) -> bool:
        if isinstance(node, _LEAVES):
            return True
        uses: dict[str, _Use] = {}
        if isinstance(node, nodes.Output):
            uses = {"nodes": _Use.FLOW}
        elif isinstance(node, nodes.Add):
            flow = use if use is _Use.FLOW else _Use.ANY
            uses = {"left": flow, "right": flow}
        elif isinstance(node, nodes.Concat):
            uses = {"nodes": use if use is _Use.FLOW else _Use.ANY}
        elif isinstance(node, nodes.And | nodes.Or):
            uses = {"left": use, "right": use}
        elif isinstance(node, nodes.CondExpr):
            uses = {"test": _Use.TEST, "expr1": use, "expr2": use}
        elif isinstance(node, nodes.Assign):
            if isinstance(node.target, nodes.Name):
                kind = self._kind(node.node)
                if kind in (_Kind.MESSAGES, _Kind.MESSAGE):
                    return self._base_holds(node.node)
                if self._kinds.get(node.target.name) is _Kind.CONTENT:
                    uses = {"node": _Use.FLOW}
            return self.holds(node.node, uses.get("node", _Use.ANY))
        elif isinstance(node, nodes.For):
            if node.recursive:
                return False
            parts = [*node.body, *node.else_, *([] if node.test is None else [node.test])]
            return self.holds(node.iter, _Use.LOOP) and all(
                self.holds(part, _Use.TEST if part is node.test else _Use.ANY) for part in parts
            )
        elif isinstance(node, nodes.If | nodes.Not):
            uses = {"test": _Use.TEST, "node": _Use.TEST}
        elif not isinstance(node, _PLAIN):
            return False
        return all(
            self.holds(part, uses.get(field, _Use.ANY))
            for field, value in node.iter_fields()
            for part in (value if isinstance(value, list) else [value])
            if isinstance(part, nodes.Node)
        )


def _field_of(node: nodes.Getattr | nodes.Getitem) -> str | None:
    """The name of a field, if it is written there."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    return str(node.arg.value) if isinstance(node.arg, nodes.Const) else None


class TemplatePieces:
    """Of a template that passes contents on, by its full rendering."""

    def __init__(self, render: Callable[[Sequence[Mapping[str, Any]], bool], str]) -> None:
        self._render = render
        self._kept: dict[tuple[Shape, bool], list[TextPiece]] = {}
        self._count = 0

    def put_together(self, messages: Sequence[Mapping[str, Any]], prompted: bool) -> str | None:
        """The text of plain messages; None: they are not plain. Raises what the rendering does."""
        if len(messages) > MOST_MESSAGES or (found := taken_apart(messages)) is None:
            return None
        shape, contents = found
        return "".join(written(self.of_shape(shape, prompted), contents))

    def of_shape(self, shape: Shape, prompted: bool) -> list[TextPiece]:
        """The pieces of all conversations of this shape, of MOST_MESSAGES at most. Raises what the
        rendering does."""
        key = shape, prompted
        pieces = self._kept.get(key)
        if pieces is None:
            pieces = self._pieces(shape, prompted)
            self._keep(key, pieces)
        return pieces

    def _keep(self, key: tuple[Shape, bool], pieces: list[TextPiece]) -> None:
        shape = key[0]
        if any(len(role) > MOST_ROLE_CHARS for role, _ in shape):
            return
        if self._count + len(shape) > MOST_KEPT or key in self._kept:
            self._kept.clear()
            self._count = 0
        self._kept[key] = pieces
        self._count += len(shape)

    def _pieces(self, shape: Shape, prompted: bool) -> list[TextPiece]:
        messages, mark = marked(shape)
        return pieces_of(self._render(messages, prompted), mark)
