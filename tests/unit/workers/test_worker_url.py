"""Addresses of engines as people write them."""

import pytest

from dynamo_router.runtime.errors import ConfigError
from dynamo_router.runtime.identity import address_worker_id
from dynamo_router.workers.worker_url import WorkerUrl, parse_worker_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("grpc://10.0.0.1:8001", WorkerUrl("10.0.0.1:8001")),
        ("grpc://host:8001/", WorkerUrl("host:8001")),
        ("host:8001", WorkerUrl("host:8001")),
        ("grpc://host:8001?id=17", WorkerUrl("host:8001", 17)),
        ("grpc://host:8001?id=18446744073709551615", WorkerUrl("host:8001", 2**64 - 1)),
        ("grpc://[::1]:8001", WorkerUrl("[::1]:8001")),
        ("grpc://host:8001?dp_size=4", WorkerUrl("host:8001", None, 4)),
        ("grpc://host:8001?weight=0.25", WorkerUrl("host:8001", weight=0.25)),
        ("grpc://host:8001?dp_start=4&id=1&dp_size=4096", WorkerUrl("host:8001", 1, 4096, 4)),
    ],
)
def test_good_urls(text: str, url: WorkerUrl) -> None:
    assert parse_worker_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "grpc://host",
        "grpc://:8001",
        "grpc://host:0",
        "grpc://host:99999",
        "grpc://host:port",
        "http://host:8001",
        "grpc://host:8001/path",
        "grpc://host:8001?id=",
        "grpc://host:8001?id=-1",
        "grpc://host:8001?id=18446744073709551616",
        "grpc://host:8001?id=1&id=2",
        "grpc://host:8001?name=x",
        "grpc://host:8001?dp_size=0",
        "grpc://host:8001?dp_size=4097",
        "grpc://host:8001?dp_size=two",
        "grpc://host:8001?dp_size=2&dp_size=2",
        "grpc://host:8001?dp_start=-1",
        "grpc://host:8001?dp_start=4294967295",
        "grpc://host:8001?weight=0",
        "grpc://host:8001?weight=1.01",
        "grpc://host:8001?weight=nan",
        "grpc://host:8001?weight=",
        "grpc://host:8001?weight=1&weight=1",
        f"grpc://host:8001?id={'9' * 5000}",
    ],
)
def test_bad_urls_name_the_key(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_worker_url(text)
    assert caught.value.key == "workers"


def test_an_engine_without_an_id_gets_one_of_its_address() -> None:
    assert WorkerUrl("h:1").default_id == address_worker_id("h:1")
    assert WorkerUrl("h:1", 0).default_id == 0
