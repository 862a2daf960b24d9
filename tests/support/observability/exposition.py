"""/metrics as Prometheus reads it: by the official client's parsers."""

from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text


def families(text: str, *, openmetrics: bool = False) -> dict[str, Any]:
    """The families of a page by name; ValueError if it is not valid."""
    read: Any = read_openmetrics if openmetrics else read_text
    found = list(read(text))
    assert len({family.name for family in found}) == len(found), "a family comes twice"
    return {family.name: family for family in found}


def samples(family: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """A family's values by sample name and sorted labels."""
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in family.samples}


def values_of(family: Any, label: str) -> dict[str, float]:
    """A family's values by one label; summed where several samples have the same."""
    values: dict[str, float] = {}
    for sample in family.samples:
        name = sample.labels.get(label, "")
        values[name] = values.get(name, 0.0) + sample.value
    return values
