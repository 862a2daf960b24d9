"""Which metrics and labels an expression of PromQL asks for, as Prometheus' grammar reads it."""

from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser as promql


@dataclass
class Selector:
    """One metric in an expression."""

    name: str
    functions: tuple[str, ...]
    """that it is an argument of, the innermost first"""
    matchers: list[tuple[str, str]]
    """(label, value)"""
    ranged: bool


@dataclass
class Query:
    """What an expression asks for."""

    selectors: list[Selector]
    groupings: set[str]
    """labels in by, on and the like"""


def read(expression: str) -> Query:
    """Raises ValueError on what is no PromQL; Grafana's interval stands for a minute."""
    parsed = promql.parse(expression.replace("$__rate_interval", "1m"))
    query = Query([], set())
    for node, functions, ranged in _walk(parsed, (), ranged=False):
        if isinstance(node, promql.VectorSelector):
            found = [(each.name, each.value) for each in node.matchers.matchers]
            query.selectors.append(Selector(node.name or "", functions, found, ranged))
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            query.groupings |= set(node.modifier.labels)
        elif isinstance(node, promql.BinaryExpr) and (modifier := node.modifier) is not None:
            query.groupings |= set(modifier.matching.labels if modifier.matching else ())
            query.groupings |= set(modifier.group_labels or ())
    return query


def _walk(
    node: promql.Expr, functions: tuple[str, ...], *, ranged: bool
) -> Iterator[tuple[promql.Expr, tuple[str, ...], bool]]:
    """Each node with the functions around it, and whether it has a range."""
    yield node, functions, ranged
    match node:
        case promql.Call():
            for argument in node.args:
                yield from _walk(argument, (node.func.name, *functions), ranged=False)
        case promql.AggregateExpr():
            yield from _walk(node.expr, (str(node.op), *functions), ranged=False)
        case promql.BinaryExpr():
            yield from _walk(node.lhs, functions, ranged=False)
            yield from _walk(node.rhs, functions, ranged=False)
        case promql.MatrixSelector():
            yield from _walk(node.vector_selector, functions, ranged=True)
        case promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from _walk(node.expr, functions, ranged=ranged)
        case _:
            pass
