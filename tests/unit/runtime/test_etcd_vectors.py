"""Recorded keys of a Dynamo's discovery are what they are documented to be.

Nothing in the package reads etcd yet: held here is that each key says what its value says.
"""

import json
from collections import Counter
from typing import Any

import pytest
from support.places import VECTORS


def entries() -> list[tuple[str, dict[str, Any]]]:
    lines = (VECTORS / "dynamo_etcd_keys.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    return [(key, json.loads(value)) for key, value in zip(lines[::2], lines[1::2], strict=True)]


ENTRIES = entries()


def test_there_are_keys_of_every_kind() -> None:
    kinds = Counter(key.split("/")[1] for key, _ in ENTRIES)
    assert kinds == {"event_channels": 17, "instances": 12, "event_sources": 4, "mdc": 4}


@pytest.mark.parametrize(("key", "value"), ENTRIES, ids=range(len(ENTRIES)))
def test_a_key_says_what_its_value_says(key: str, value: dict[str, Any]) -> None:
    version, kind, *path = key.split("/")
    assert version == "v1"
    if kind in ("instances", "mdc"):
        named = [value["namespace"], value["component"], value["endpoint"]]
        assert path == [*named, f"{value['instance_id']:x}"]
    else:
        owner = value["instance_id" if kind == "event_channels" else "publisher_id"]
        assert path == [*scope(value), "topic", value["topic"], f"{owner:x}"]
    KINDS[kind](value)


def scope(value: dict[str, Any]) -> list[str]:
    """An endpoint as the segments of a key, or of a subject."""
    of = value["scope"]["endpoint"]
    return ["namespace", of["namespace"], "component", of["component"], "endpoint", of["name"]]


def check_instance(value: dict[str, Any]) -> None:
    assert value["type"] == "Endpoint"
    ((carrier, address),) = value["transport"].items()
    hexadecimal = f"{value['instance_id']:x}"
    if carrier == "tcp":
        host, *path = address.split("/")
        assert host.count(":") == 1
        assert path == [hexadecimal, value["namespace"], value["component"], value["endpoint"]]
    else:
        assert carrier == "nats_tcp"
        service = f"{value['namespace']}_{value['component']}"
        assert address == f"{service}.{value['endpoint']}-{hexadecimal}"


def check_card(value: dict[str, Any]) -> None:
    assert value["type"] == "Model"
    card = value["card_json"]
    assert card["kv_cache_block_size"] == 16
    assert {"display_name", "runtime_config", "model_type", "model_input"} <= set(card)


def check_channel(value: dict[str, Any]) -> None:
    assert value["type"] == "EventChannel"
    prefix = ".".join(scope(value))
    assert value["transport"] == {"kind": "Nats", "config": {"subject_prefix": prefix}}


def check_source(value: dict[str, Any]) -> None:
    assert value["type"] == "EventSource"
    metadata = value["metadata"]
    assert metadata["publisher_id"] == value["publisher_id"]
    target = metadata["recovery_target"]
    assert target["endpoint"] == f"worker_kv_query_source_{value['publisher_id']:x}"
    assert target["instance_id"] == metadata["worker"]["worker_id"]
    check_instance({"type": "Endpoint", **target})


KINDS = {
    "instances": check_instance,
    "mdc": check_card,
    "event_channels": check_channel,
    "event_sources": check_source,
}
