"""The loop of a chat template that writes the messages: found in its syntax tree, and changed so
that it can begin in the middle, by calls that GrowingTemplate answers.

The calls stand for what the template has there, in full: the loop over messages; a comparison of
a message's number with one that was found before; a loop that only looks for the last message of
some kind, or whether any later one is. None of them is another text.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from jinja2 import nodes
from jinja2.idtracking import Symbols, symbols_for_node
from jinja2.visitor import NodeTransformer

BEGUN, ROWS, PLACE = "growing_begun", "growing_rows", "growing_place"
PAST, LAST_HIT, ANY_LATER = "growing_past", "growing_last", "growing_later"
FOUND = "found"
"""What a template of a search sets."""
_OURS = frozenset((BEGUN, ROWS, PLACE, PAST, LAST_HIT, ANY_LATER))
_FIELDS = frozenset(
    "index index0 first last length revindex revindex0 previtem nextitem depth depth0 cycle".split()
)
_REFUSED = (
    nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block,
    nodes.EvalContextModifier,
)  # fmt: skip
NOW = "strftime_now"
_MADE_UP = "lipsum"
_MIRRORED = {"gt": "lt", "gteq": "lteq", "lt": "gt", "lteq": "gteq"}
SomeNode = TypeVar("SomeNode", bound=nodes.Node)
Key = tuple[str, str]
"""A namespace and its attribute."""
IsMessages = Callable[[nodes.Node], bool]


class LoopParts(NamedTuple):
    """What is to be known of a tree that was changed."""

    compared: frozenset[Key]
    """namespaces and attributes of them that the loop compares with numbers of messages, no more"""
    searches: list[tuple[str, nodes.Expr]]
    """names of messages, and what is asked of each"""
    rest: list[nodes.Node]
    """what there is without the parts before the loop that ask nothing of later messages; empty: it
    has no such parts"""


def cut_loop(tree: nodes.Template, is_messages: IsMessages) -> LoopParts | None:
    """Change a tree so that its loop over messages can begin in the middle; None: it has none that
    can, and is not to be used. `is_messages`: whether an expression stands for all of them, or
    some."""
    if next(tree.find_all(_REFUSED), None) is not None:
        return None
    macros = [macro.name for macro in tree.find_all(nodes.Macro)]
    if len({*macros}) < len(macros):
        return None  # by its name it would not be known
    names = {name.name for name in tree.find_all(nodes.Name)}
    if names & {"self", "super", *_OURS}:
        return None
    if any(name.name == NOW and name.ctx != "load" for name in tree.find_all(nodes.Name)):
        return None
    known = symbols_for_node(tree)
    loops = [loop for loop in _outer_loops(tree.body) if is_messages(_base(loop.iter))]
    writing = [loop for loop in loops if _is_plain(loop) and _writes(loop)]
    if not writing or not isinstance(writing[-1].target, nodes.Name):
        return None
    loop = writing[-1]
    if _base(loop.iter) is not loop.iter or not _rename_place(loop.body, _FIELDS):
        return None
    if any(next(_all(loop.body, kind), None) for kind in (nodes.Macro, nodes.CallBlock)):
        return None
    seen = [*loop.body, *_macros_of(tree, loop.body)]
    if _dated(seen):
        return None
    parts = LoopParts(_compared(seen), [], [])
    changes = _Changes(parts, is_messages)
    loop.body = changes.all_of(loop.body)
    for other in loops:
        if other is not loop:
            changes.search(other)
    values = _values(_names(seen))
    loop.iter = _call(ROWS, loop.iter, values)
    _leave_out_later(tree, known, values)
    loop.target = nodes.Tuple([loop.target, nodes.Name(PLACE, "store")], "store")
    if loop in tree.body:
        parts.rest.extend(_cut_beginning(tree, loop, known, is_messages))
    return None if _later(tree, known) else parts


def _cut_beginning(
    tree: nodes.Template, loop: nodes.For, known: Symbols, is_messages: IsMessages
) -> list[nodes.Node]:
    """Call BEGUN where a template has written what asks nothing of later messages, with the names
    that are read behind it; return what comes behind it."""
    count = 0
    while tree.body[count] is not loop and not _asks_all(tree.body[count], is_messages):
        count += 1
    before, behind = tree.body[:count], tree.body[count:]
    rest = [*(each for each in before if isinstance(each, nodes.Macro)), *behind]
    if len(before) == len(rest) - len(behind):
        return []
    macros = {each.name for each in rest if isinstance(each, nodes.Macro)}
    if any(each.name in macros and each.ctx != "load" for each in tree.find_all(nodes.Name)):
        return []
    values = _values(_names(rest) - macros)
    tree.body[count:count] = [nodes.ExprStmt(_call(BEGUN, values), lineno=loop.lineno)]
    _leave_out_later(tree, known, values)
    # They are read first there, too: a name that is set first has no value in macros before.
    return [nodes.ExprStmt(values, lineno=loop.lineno), *rest]


def _leave_out_later(tree: nodes.Template, known: Symbols, values: nodes.Dict) -> None:
    """Leave out what has no value where these values are read."""
    later = _later(tree, known)
    values.items = [each for each in values.items if _name_of(each) not in later]


def _later(tree: nodes.Template, known: Symbols) -> set[str]:
    """Names that are set only behind where a tree, as it was changed, reads them: up to that they
    have no value, and now they would have that of the context. `known`: of the tree before."""
    now = symbols_for_node(tree)
    return {name for name, at in known.refs.items() if now.loads[at] != known.loads[at]}


def _name_of(pair: nodes.Pair) -> str:
    assert isinstance(pair.value, nodes.Name)
    return pair.value.name


def _asks_all(node: nodes.Node, is_messages: IsMessages) -> bool:
    """Whether a part of a template may ask how many messages there are, or for all of them; it
    is looked at again when it does."""
    for part in (node, *node.find_all(nodes.Node)):
        if isinstance(part, nodes.For) and is_messages(_base(part.iter)):
            return True
        if isinstance(part, nodes.Name) and part.name == LAST_HIT:
            return True
        if isinstance(part, nodes.Filter) and part.node is not None and is_messages(part.node):
            return True
        if isinstance(part, nodes.Getitem) and is_messages(part.node):
            if _base(part) is not part or isinstance(part.arg, nodes.Neg):
                return True
    return False


def _outer_loops(body: Iterable[nodes.Node]) -> Iterator[nodes.For]:
    """Those whose text goes straight into the template's."""
    for node in body:
        if isinstance(node, nodes.For):
            yield node
        elif isinstance(node, nodes.If):
            yield from _outer_loops((*node.body, *node.elif_, *node.else_))


def _base(node: nodes.Node) -> nodes.Node:
    """What a list from the end is the list of."""
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        arg, step = node.arg, node.arg.step
        if isinstance(step, nodes.Neg) and isinstance(step.node, nodes.Const):
            if arg.start is None and arg.stop is None and step.node.value == 1:
                return node.node
    return node


def _is_plain(loop: nodes.For) -> bool:
    return not loop.recursive and loop.test is None and not loop.else_


def _writes(loop: nodes.For) -> bool:
    return next(_all(loop.body, nodes.Output), None) is not None


def _all(body: Iterable[nodes.Node], kind: type[SomeNode]) -> Iterator[SomeNode]:
    for node in body:
        if isinstance(node, kind):
            yield node
        yield from node.find_all(kind)


def _names(body: Iterable[nodes.Node]) -> set[str]:
    """All that are read or set there, but for those of loops."""
    body = list(body)
    names = {each.name for each in _all(body, nodes.Name)}
    return (names | {each.name for each in _all(body, nodes.NSRef)}) - _OURS - {"loop"}


def _rename_place(body: Iterable[nodes.Node], fields: frozenset[str]) -> bool:
    """Give `loop` of the loop with this body another name; whether only these fields of it are
    used."""
    for node in body:
        if isinstance(node, nodes.Name) and node.name == "loop":
            return False
        if isinstance(node, nodes.Getattr) and _is_name(node.node, "loop"):
            if node.attr not in fields:
                return False
            node.node = _name(PLACE)
            continue
        parts: Iterable[nodes.Node] = node.iter_child_nodes()
        if isinstance(node, nodes.For):  # within it `loop` is its own
            parts = (node.iter, *node.else_)
            if node.test is not None and any(
                _is_name(each, "loop") for each in _all([node.test], nodes.Name)
            ):
                return False
        if not _rename_place(parts, fields):
            return False
    return True


def _macros_of(tree: nodes.Template, body: Sequence[nodes.Node]) -> list[nodes.Macro]:
    """Those that may be called there, and by each other."""
    macros, found = list(tree.find_all(nodes.Macro)), list[nodes.Macro]()
    wanted = {each.name for each in _all(body, nodes.Name)}
    while new := [each for each in macros if each.name in wanted and each not in found]:
        found += new
        wanted |= {each.name for each in _all(new, nodes.Name)}
    return found


def draws(tree: nodes.Template) -> bool:
    """Whether a template may draw at random: by Jinja's filter for that, also if `map` is given its
    name, or by its made-up text."""
    if any(each.name == _MADE_UP for each in tree.find_all(nodes.Name)):
        return True
    return any(each.name == "random" or _maps_any(each) for each in tree.find_all(nodes.Filter))


def _maps_any(node: nodes.Filter) -> bool:
    """Whether it is `map` by `random`, or by a filter whose name is not seen."""
    if node.name != "map" or not (node.args or node.dyn_args):
        return False
    name = node.args[0] if node.args else None
    return not isinstance(name, nodes.Const) or name.value == "random"


def _dated(body: Sequence[nodes.Node]) -> bool:
    """Whether the time is asked for there."""
    return any(each.name == NOW for each in _all(body, nodes.Name))


def _compared(body: Sequence[nodes.Node]) -> frozenset[Key]:
    """Attributes of namespaces of which comparisons with a number of a message are all that is
    made there."""
    comparisons = [_comparison(node) for node in _all(body, nodes.Compare)]
    keys = [each.key for each in comparisons if each is not None]
    found = set()
    for name, attribute in keys:
        uses = [each for each in _all(body, nodes.Name) if each.name == name]
        fields = [each for each in _all(body, nodes.Getattr) if _is_name(each.node, name)]
        sets = [each.attr for each in _all(body, nodes.NSRef) if each.name == name]
        read = sum(each.attr == attribute for each in fields)
        if len(uses) == len(fields) and read == keys.count((name, attribute)):
            if attribute not in sets:
                found.add((name, attribute))
    return frozenset(found)


class _Comparison(NamedTuple):
    """Of a number of a message with an attribute of a namespace."""

    number: nodes.Expr
    how: str
    other: nodes.Expr
    key: Key


def _comparison(node: nodes.Compare) -> _Comparison | None:
    """None: it is of other things."""
    if len(node.ops) != 1:
        return None
    left, how, right = node.expr, node.ops[0].op, node.ops[0].expr
    if how not in _MIRRORED:
        return None
    if _is_number(right):
        left, how, right = right, _MIRRORED[how], left
    if not _is_number(left) or not isinstance(right, nodes.Getattr):
        return None
    name = right.node
    if not isinstance(name, nodes.Name) or name.name == PLACE:
        return None
    return _Comparison(left, how, right, (name.name, right.attr))


class _Changes(NodeTransformer):
    """Of what the loop does, to calls."""

    def __init__(self, parts: LoopParts, is_messages: IsMessages) -> None:
        self._parts, self._is_messages = parts, is_messages

    def all_of(self, body: list[nodes.Node]) -> list[nodes.Node]:
        return [each for node in body for each in self.visit_list(node)]

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        found = _comparison(node)
        if found is None or found.key not in self._parts.compared:
            return self.generic_visit(node)
        names = map(nodes.Const, (*found.key, found.how))
        return _call(PAST, *names, found.number, found.other)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """One that only looks whether any later message is of some kind."""
        wanted = node.iter
        if (
            isinstance(wanted, nodes.Getitem)
            and isinstance(wanted.arg, nodes.Slice)
            and wanted.arg.stop is None
            and wanted.arg.step is None
            and wanted.arg.start is not None
            and _is_number(wanted.arg.start)
            and self._is_messages(wanted.node)
            and (asked := _only_asks(node, self._is_messages)) is not None
            and _asks_each(asked.test, asked.target)
            and all(isinstance(value, nodes.Const) for _, value in asked.sets)
        ):
            call = _call(ANY_LATER, self._search(asked, asked.test), wanted.node, wanted.arg.start)
            return nodes.If(call, asked.body, [], [], lineno=node.lineno)
        return self.generic_visit(node)

    def search(self, loop: nodes.For) -> None:
        """Change one before the loop that only looks for the last message of some kind."""
        base, asked = _base(loop.iter), _only_asks(loop, self._is_messages)
        if base is loop.iter or asked is None:
            return
        conditions = list(_conditions(asked.test))
        flags = [each for each in conditions if isinstance(each, nodes.Getattr)]
        others = [each for each in conditions if not isinstance(each, nodes.Getattr)]
        if len(flags) != 1 or not others:
            return
        flag, sets = flags[0], dict(asked.sets)
        if not isinstance(flag.node, nodes.Name) or len(sets) != len(asked.sets):
            return
        if any(name != flag.node.name for name, _ in sets):
            return  # it may be another name of the same namespace
        ends = sets.get((flag.node.name, flag.attr))
        if not isinstance(ends, nodes.Const) or ends.value is not False:
            return
        if not all(_asks_each(each, asked.target) for each in others):
            return
        if not _rename_place(loop.body, frozenset(("index0",))):
            return
        test = others[0]
        for each in others[1:]:
            test = nodes.And(test, each)
        # Without a message that is found the flag is looked at, too: it may not be there.
        loop.iter = _call(LAST_HIT, self._search(asked, test), base, flag)
        loop.target = nodes.Tuple([loop.target, nodes.Name(PLACE, "store")], "store")

    def _search(self, asked: "_Asked", test: nodes.Expr) -> nodes.Const:
        self._parts.searches.append((asked.target, test))
        return nodes.Const(len(self._parts.searches) - 1)


class _Asked(NamedTuple):
    """The one condition of a loop that does nothing else but to set namespaces if it holds."""

    target: str
    test: nodes.Expr
    body: list[nodes.Node]
    sets: list[tuple[Key, nodes.Node]]
    """what the body sets"""


def _only_asks(loop: nodes.For, is_messages: IsMessages) -> _Asked | None:
    """None: it is no such loop. Names that it sets before are numbers, which cannot fail."""
    *before, asked = loop.body
    target = loop.target
    if not _is_plain(loop) or not isinstance(target, nodes.Name):
        return None
    names = {target.name}
    if not isinstance(asked, nodes.If) or asked.elif_ or asked.else_:
        return None
    for each in before:
        if not isinstance(each, nodes.Assign) or not isinstance(each.target, nodes.Name):
            return None
        if each.target.name == target.name or not _is_place(each.node, is_messages):
            return None
        names.add(each.target.name)
    sets: list[tuple[Key, nodes.Node]] = []
    for each in asked.body:
        if not isinstance(each, nodes.Assign) or not isinstance(each.target, nodes.NSRef):
            return None
        if each.target.name in names:
            return None
        sets.append(((each.target.name, each.target.attr), each.node))
    assert isinstance(asked.test, nodes.Expr)
    return _Asked(target.name, asked.test, asked.body, sets)


def _is_place(node: nodes.Node, is_messages: IsMessages) -> bool:
    """Whether it is the place of a message: numbers of messages and times of a loop, added up."""
    if isinstance(node, nodes.Add | nodes.Sub):
        return _is_place(node.left, is_messages) and _is_place(node.right, is_messages)
    if isinstance(node, nodes.Filter):
        plain = node.name in ("length", "count") and not node.args and not node.kwargs
        return plain and node.node is not None and is_messages(node.node)
    if isinstance(node, nodes.Getattr):
        return _is_name(node.node, "loop") and node.attr in ("index", "index0")
    return isinstance(node, nodes.Const) and type(node.value) is int


def _conditions(test: nodes.Expr) -> Iterator[nodes.Expr]:
    """Those that all have to hold."""
    if isinstance(test, nodes.And):
        yield from _conditions(test.left)
        yield from _conditions(test.right)
    else:
        yield test


def _asks_each(test: nodes.Node, target: str) -> bool:
    """Whether an expression is about one message alone."""
    names = {each.name for each in _all([test], nodes.Name)}
    return names == {target}


def _is_number(node: nodes.Node | None) -> bool:
    return (
        isinstance(node, nodes.Getattr)
        and _is_name(node.node, PLACE)
        and node.attr in ("index", "index0")
    )


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _values(names: Iterable[str]) -> nodes.Dict:
    return nodes.Dict([nodes.Pair(nodes.Const(each), _name(each)) for each in sorted(names)])


def _name(name: str) -> nodes.Name:
    return nodes.Name(name, "load")


def _call(name: str, *parts: nodes.Node) -> nodes.Call:
    return nodes.Call(_name(name), list(parts), [], None, None)
