"""Selectors of labels and fields, as lists and watches have them."""

from collections.abc import Mapping
from typing import Any

from support.servers.kubernetes.api_objects import Selector


def selector_of(query: Mapping[str, str]) -> Selector:
    """What `labelSelector` and `fieldSelector` of a request let through."""
    labels = [part for part in query.get("labelSelector", "").split(",") if part]
    fields = [part for part in query.get("fieldSelector", "").split(",") if part]

    def fits(found: dict[str, Any]) -> bool:
        metadata = found["metadata"]
        known = metadata.get("labels") or {}
        return all(_holds(known, part) for part in labels) and all(
            _holds(metadata, part.removeprefix("metadata.")) for part in fields
        )

    return fits


def _holds(values: Mapping[str, str], part: str) -> bool:
    """key=value, key==value, key!=value, key, !key."""
    if "!=" in part:
        key, value = part.split("!=")
        return values.get(key) != value
    if "=" in part:
        key, _, value = part.replace("==", "=").partition("=")
        return values.get(key) == value
    if part.startswith("!"):
        return part[1:] not in values
    return part in values
