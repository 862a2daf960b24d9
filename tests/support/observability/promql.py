"""As much of PromQL as it takes to know which metrics and labels an expression asks for."""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<span>\[[^\]]*\])|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)'
    r"|(?P<number>[0-9][0-9.]*(?:e[+-]?[0-9]+)?[smhdwy]?)|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},]))"
)
_LISTS = ("by", "without", "on", "ignoring", "group_left", "group_right")
_WORDS = ("and", "or", "unless", "bool", "offset")


@dataclass
class Selector:
    """One metric in an expression."""

    name: str
    functions: tuple[str, ...]
    """that it is an argument of, the innermost first"""
    matchers: list[tuple[str, str, str]] = field(default_factory=list)
    """(label, operator, value)"""
    ranged: bool = False


@dataclass
class Query:
    """What an expression asks for."""

    selectors: list[Selector]
    groupings: set[str]
    """labels in by, on and the like"""


def read(expression: str) -> Query:
    """Raises ValueError on what this reader does not know."""
    tokens = _tokens(expression)
    query, open_calls, at = Query([], set()), [""], 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind == "name" and text in _LISTS:
            labels, at = _names(tokens, at)
            query.groupings |= labels
        elif text in _WORDS:
            continue
        elif kind == "name" and following == "(":
            open_calls.append(text)
            at += 1
        elif kind == "name" and following not in _LISTS:
            calls = tuple(call for call in reversed(open_calls) if call)
            selector = Selector(text, calls)
            at = _matchers(tokens, at, selector)
            if at < len(tokens) and tokens[at][0] == "span":
                selector.ranged, at = True, at + 1
            query.selectors.append(selector)
        elif kind == "name":  # sum by (a) (...)
            labels, at = _names(tokens, at + 1)
            query.groupings |= labels
            if tokens[at][1] != "(":
                raise ValueError(f"nothing is aggregated in {expression!r}")
            open_calls.append(text)
            at += 1
        elif text == "(":
            open_calls.append("")
        elif text == ")":
            if len(open_calls) == 1:
                raise ValueError(f"a ) too many in {expression!r}")
            open_calls.pop()
        elif text in "{}" or kind in ("text", "span"):
            raise ValueError(f"{text} stands alone in {expression!r}")
    if len(open_calls) != 1:
        raise ValueError(f"a ( too many in {expression!r}")
    return query


def _tokens(expression: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    expression = expression.rstrip()
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None or found.lastgroup is None:
            raise ValueError(f"{expression[at:]!r} is not understood")
        tokens.append((found.lastgroup, found[found.lastgroup]))
        at = found.end()
    return tokens


def _names(tokens: list[tuple[str, str]], at: int) -> tuple[set[str], int]:
    """The labels of a list in brackets that begins here, and where it has ended."""
    if tokens[at][1] != "(":
        return set(), at
    end = next(i for i in range(at, len(tokens)) if tokens[i][1] == ")")
    return {text for kind, text in tokens[at:end] if kind == "name"}, end + 1


def _matchers(tokens: list[tuple[str, str]], at: int, selector: Selector) -> int:
    if at >= len(tokens) or tokens[at][1] != "{":
        return at
    at += 1
    while tokens[at][1] != "}":
        (_, label), (_, sign), (kind, value) = tokens[at : at + 3]
        if sign not in ("=", "!=", "=~", "!~") or kind != "text":
            raise ValueError(f"{label}{sign}{value} is no matcher")
        selector.matchers.append((label, sign, value[1:-1]))
        at += 3
        if tokens[at][1] == ",":
            at += 1
    return at + 1
