"""Instances as Dynamo writes them, of both generations, and what is none."""

import json
from typing import Any

import pytest
from support.places import VECTORS

from dynamo_router.runtime.components.instances import (
    EndpointName,
    Instance,
    decode_instance,
    path_of,
)
from dynamo_router.runtime.kv_stores import Entry

NAME = EndpointName("dynamo", "backend", "generate")
LINES = [
    line
    for line in (VECTORS / "dynamo_etcd_keys.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
RECORDED = [
    (key.removeprefix("v1/instances/"), value)
    for key, value in zip(LINES[::2], LINES[1::2], strict=True)
    if key.startswith("v1/instances/")
]


def entry(key: str, value: Any) -> Entry:
    text = value if isinstance(value, str) else json.dumps(value)
    return Entry(key, text.encode(), 1)


@pytest.mark.parametrize(("key", "value"), RECORDED)
def test_recorded_instances_are_read_and_written(key: str, value: str) -> None:
    instance = decode_instance(entry(key, value))
    recorded = json.loads(value)
    assert instance.instance_id == recorded["instance_id"]
    assert {instance.transport: instance.address} == recorded["transport"]
    assert instance.key("today") == ("v1/instances", key)
    if instance.transport == "tcp":
        assert instance.address.partition("/")[2] == path_of(instance.name, instance.instance_id)
    recorded.pop("device_type", None)
    assert json.loads(instance.value()) == recorded


@pytest.mark.parametrize("last", ["/7f", "-7f", "/worker-7f"])
def test_keys_of_the_seed_are_read(last: str) -> None:
    subject = "dynamo_backend.generate-7f"
    key = f"dynamo/backend/generate{last}"
    instance = decode_instance(entry(key, {"transport": {"nats_tcp": subject}}))
    assert instance == Instance(NAME, 0x7F, "nats_tcp", subject, "json")
    assert instance.key("seed") == ("/services", "dynamo/backend/generate/7f")


GOOD = {"transport": {"tcp": "h:1/p"}}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("dynamo/backend/7f", GOOD, "is not namespace/component/endpoint/instance"),
        ("dynamo/backend/generate/7f/x", GOOD, "is not namespace/component/endpoint/instance"),
        ("dynamo/backend/generate/worker", GOOD, "is not an instance's id"),
        ("dynamo/backend/generate/" + "f" * 17, GOOD, "larger than an instance's id"),
        ("dynamo/backend/generate/+7f", GOOD, "is not an instance's id"),
        ("dynamo/backend/generate/7_f", GOOD, "is not an instance's id"),
        ("dynamo/backend/generate/7f", {**GOOD, "instance_id": -127}, "its key"),
        ("dynamo/backend/generate/7f", {**GOOD, "instance_id": 127.5}, "its key"),
        ("dynamo/backend/generate/7f", {**GOOD, "instance_id": 10**400}, "."),
        ("dynamo/backend/generate/7f", {**GOOD, "instance_id": True}, "not an instance"),
        (
            f"dynamo/backend/generate/{2**62 + 1:x}",
            {**GOOD, "instance_id": 2**62 - 4096},
            "its key",
        ),
        ("dynamo//generate/7f", GOOD, "a name has no dot"),
        ("dynamo/backend/generate/7f", "{half", "not an instance"),
        ("dynamo/backend/generate/7f", "[]", "not an instance"),
        ("dynamo/backend/generate/7f", {"transport": {}}, "it has no transport"),
        ("dynamo/backend/generate/7f", {"transport": {"tcp": 7}}, "it has no transport"),
        ("dynamo/backend/generate/7f", {**GOOD, "instance_id": 8}, "its key"),
        ("dynamo/backend/generate/7f", {**GOOD, "namespace": "other"}, "its key"),
    ],
)
def test_what_is_no_instance_says_why(key: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_instance(entry(key, value))


EXACT = 7587891994254240587


@pytest.mark.parametrize(
    "written",
    ["7587891994254240587", "7587891994254241000", "7587891994254240768", "7.5878919942542e+18"],
)
def test_an_id_that_its_writer_rounded_is_that_of_the_key(written: str) -> None:
    value = f'{{"transport": {{"tcp": "h:1/p"}}, "instance_id": {written}}}'
    instance = decode_instance(entry(f"dynamo/backend/generate/{EXACT:x}", value))
    assert instance.instance_id == EXACT


@pytest.mark.parametrize("name", ["a.b", "a.b.c.d", "a..c", "a/b.c.d", "a b.c.d", ""])
def test_a_text_that_names_no_endpoint(name: str) -> None:
    with pytest.raises(ValueError):
        EndpointName.parse(name)


def test_an_endpoint_may_be_written_as_an_address() -> None:
    assert EndpointName.parse("dyn://dynamo.backend.generate") == NAME
    assert str(NAME) == "dynamo.backend.generate"
