"""Who owns which field of an object: server-side apply, and updates beside it. No I/O.

Rules, by the documentation of server-side apply: each manager owns the fields it applied; to apply
another value for a field of somebody else's is a conflict unless it is forced; a field that a
manager applied before and does not now is removed if nobody else owns it; an update owns what it
changed. Lists are one field, but owner references, which are a map by uid.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

Path = tuple[str, ...]
_SYSTEM = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "name",
           "namespace")  # fmt: skip


class Conflict(Exception):
    """`fields`: (manager, path) of what somebody else owns."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        super().__init__(f"{len(fields)} conflicts")
        self.fields = fields


def applied(
    before: dict[str, Any] | None, body: dict[str, Any], manager: str, force: bool
) -> dict[str, Any]:
    """The object after an apply. Conflict."""
    wanted = leaves(body)
    known = leaves(before) if before is not None else {}
    owners = _owners(before)
    conflicts = [
        (other, "".join(f".{key.removeprefix('f:')}" for key in path))
        for (other, operation), paths in owners.items()
        for path in sorted(paths & wanted.keys())
        if (other, operation) != (manager, "Apply") and known.get(path) != wanted[path]
    ]
    if conflicts and not force:
        raise Conflict(conflicts)
    ours = owners.pop((manager, "Apply"), set())
    taken = {path for path in wanted if known.get(path) != wanted[path] or path not in known}
    owners = {key: paths - taken for key, paths in owners.items()}
    others = set().union(*owners.values()) if owners else set()
    dropped = ours - wanted.keys() - others
    left = {path: value for path, value in known.items() if path not in dropped}
    # A value in place of a map, or the other way round.
    left = {
        path: value
        for path, value in left.items()
        if not any(
            path[: len(new)] == new or new[: len(path)] == path for new in wanted.keys() - {path}
        )
    }
    owners[manager, "Apply"] = set(wanted)
    return _object(before or body, {**left, **wanted}, owners)


def updated(before: dict[str, Any] | None, body: dict[str, Any], manager: str) -> dict[str, Any]:
    """The object after it was created or replaced."""
    wanted, known = leaves(body), leaves(before) if before is not None else {}
    changed = {path for path, value in wanted.items() if path not in known or known[path] != value}
    owners = {
        key: {path for path in paths - changed if path in wanted}
        for key, paths in _owners(before).items()
    }
    if changed:
        owners.setdefault((manager, "Update"), set()).update(changed)
    return _object(body, wanted, owners)


def leaves(found: dict[str, Any]) -> dict[Path, Any]:
    """The fields of an object that somebody can own, with their values."""
    return dict(_walk({key: found[key] for key in found if key not in ("apiVersion", "kind")}, ()))


def _walk(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if path == ("f:metadata", "f:ownerReferences"):
        for owner in value:
            yield (*path, f'k:{{"uid":"{owner["uid"]}"}}'), owner
    elif isinstance(value, dict) and (value or not path):
        for key, inner in value.items():
            if path == ("f:metadata",) and key in _SYSTEM:
                continue
            yield from _walk(inner, (*path, f"f:{key}"))
    else:
        yield path, value


def _owners(found: dict[str, Any] | None) -> dict[tuple[str, str], set[Path]]:
    entries = found["metadata"].get("managedFields", []) if found is not None else []
    return {
        (entry["manager"], entry["operation"]): set(_paths(entry["fieldsV1"], ()))
        for entry in entries
    }


def _paths(fields: dict[str, Any], path: Path) -> Iterator[Path]:
    for key, inner in fields.items():
        if inner:
            yield from _paths(inner, (*path, key))
        else:
            yield (*path, key)


def _object(
    like: dict[str, Any], values: dict[Path, Any], owners: dict[tuple[str, str], set[Path]]
) -> dict[str, Any]:
    made: dict[str, Any] = {key: like[key] for key in ("apiVersion", "kind")}
    made["metadata"] = {
        key: value for key, value in like.get("metadata", {}).items() if key in _SYSTEM
    }
    for path, value in values.items():
        at = made
        for key in path[:-1]:
            at = at.setdefault(key.removeprefix("f:"), [] if key == "f:ownerReferences" else {})
        if isinstance(at, list):
            at.append(deepcopy(value))
        else:
            at[path[-1].removeprefix("f:")] = deepcopy(value)
    entries = []
    for (manager, operation), paths in owners.items():
        fields: dict[str, Any] = {}
        for path in sorted(paths):
            inner = fields
            for key in path:
                inner = inner.setdefault(key, {})
        if fields:
            entries.append(
                {
                    "manager": manager,
                    "operation": operation,
                    "apiVersion": made["apiVersion"],
                    "fieldsType": "FieldsV1",
                    "fieldsV1": fields,
                    "time": "2026-01-01T00:00:00Z",
                }  # fmt: skip
            )
    made["metadata"]["managedFields"] = entries
    return made
