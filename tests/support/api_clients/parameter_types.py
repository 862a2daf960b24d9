"""The parameter types of API clients, walked: which fields and kinds there are."""

from typing import Any, get_args, get_type_hints


def fields_of(kind: Any) -> set[str]:
    """Of a TypedDict."""
    return set(get_type_hints(kind))


def kinds_of(union: Any) -> set[str]:
    """What `type` may be in the TypedDicts of a union."""
    found: set[str] = set()
    for each in get_args(union):
        if "type" in (hints := get_type_hints(each)):
            found |= set(_literals(hints["type"]))
    return found


def _literals(kind: Any) -> list[str]:
    args = get_args(kind)
    if not args:
        return []
    return [each for arg in args for each in ([arg] if isinstance(arg, str) else _literals(arg))]
