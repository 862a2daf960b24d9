"""Addresses of engines as people write them."""

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.base.identity import address_worker_id
from dynamo_router.workers.transfer_facts import TransferFacts
from dynamo_router.workers.worker_url import (
    WorkerName,
    WorkerUrl,
    parse_worker,
    parse_worker_url,
)


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
        ("openai+http://host:8001", WorkerUrl("host:8001", dialect="openai")),
        ("openai+http://host:8001/v1", WorkerUrl("host:8001", dialect="openai")),
        ("openai+https://host:8001/?id=3", WorkerUrl("host:8001", 3, tls=True, dialect="openai")),
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
        "grpc://host:8001?family=ipv4",
        "grpc+dns://host:8001",
        "openai://host:8001",
        "openai+http://host",
        "openai+http://host:8001/v2",
        "openai+http://key@host:8001",
        "openai+http+dns://host:8001",
        "grpc+srv://host:8001",
        "dns://host:8001",
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


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("grpc+dns://engines.example:9001", WorkerName("engines.example", 9001)),
        (
            "grpcs+dns://e:1?dp_size=2&dp_start=4&weight=0.5&family=any",
            WorkerName("e", 1, True, 2, 4, 0.5, "any"),
        ),
    ],
)
def test_a_name_of_several_workers(text: str, name: WorkerName) -> None:
    assert parse_worker(text) == name
    assert str(name) == text.partition("?")[0]


@pytest.mark.parametrize(
    "text",
    ["grpc+dns://e:1?id=5", "grpc+dns://e:1?family=ipx", "grpc+dns://e", "grpc+dns://u:p@e:1"],
)
def test_bad_names(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_worker(text)
    assert caught.value.key == "workers" and "u:p" not in str(caught.value)


def test_the_worker_at_an_address_of_a_name() -> None:
    plain, secure = WorkerName("e", 9, dp_size=2, weight=0.5), WorkerName("e", 9, tls=True)
    assert plain.worker_at("10.0.0.1") == WorkerUrl("10.0.0.1:9", dp_size=2, weight=0.5)
    # The certificate is the name's: addresses come and go.
    assert secure.worker_at("2001:db8::1") == WorkerUrl("[2001:db8::1]:9", tls=True, tls_name="e")


def test_where_events_are_told() -> None:
    url = parse_worker_url("grpc://h:1?events=tcp://h:5557&replay=tcp://h:5558&weight=0.5")
    assert (url.events, url.replay, url.weight) == ("tcp://h:5557", "tcp://h:5558", 0.5)
    assert parse_worker_url("h:1?events=http://h:8000&dp_size=2").events == "http://h:8000"
    assert parse_worker_url("h:1").events is None


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ("events=h:5557", "events is not tcp://"),
        ("events=tcp://", "events is not tcp://"),
        ("events=nats://h:1", "events is not tcp://"),
        ("replay=tcp://h:1", "replay needs events over ZMQ"),
        ("events=http://h:1&replay=tcp://h:1", "replay needs events over ZMQ"),
        ("events=tcp://h:1&replay=http://h:1", "replay is not tcp://"),
        ("events=tcp://h:1&dp_size=2", "each rank has a socket"),
    ],
)
def test_addresses_of_events_are_checked(claims: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_worker_url(f"grpc://h:1?{claims}")


def test_how_an_engine_hands_prompts_over() -> None:
    url = parse_worker_url(
        "openai+http://h:8001?handoff=nixl_push&engine_id=a,b&dp_size=2&tp=4&pp=1"
    )
    assert url.transfer == TransferFacts(
        connector="nixl_push", host="h", port=5600, engine_ids=("a", "b")
    )
    assert url.parallel == (4, 1)
    url = parse_worker_url("openai+http://[::1]:8001?handoff=mooncake&handoff_port=9000")
    assert (url.transfer.host, url.transfer.port) == ("::1", 9000)
    assert parse_worker_url("openai+http://h:8001").transfer == TransferFacts()


def test_over_grpc_vllm_states_its_engine_id_itself() -> None:
    url = parse_worker_url("grpc://h:1?handoff=nixl_push&tp=2")
    expected = TransferFacts(connector="nixl_push", host="h", port=5600)
    assert (url.transfer, url.parallel) == (expected, (2, 0))


@pytest.mark.parametrize(
    "text, reason",
    [
        ("grpc+dns://h:1?handoff=nixl", "only one each of dp_size"),
        ("grpc://h:1?handoff_port=9", "need handoff"),
        ("openai+http://h:1?handoff=magic", "handoff is not one of nixl, nixl_push, mooncake"),
        ("openai+http://h:1?handoff_port=9", "need handoff"),
        ("openai+http://h:1?engine_id=a", "need handoff"),
        ("openai+http://h:1?handoff=nixl_push", "needs engine_id"),
        ("openai+http://h:1?handoff=nixl_push&engine_id=a,b", "one id for each rank"),
        ("openai+http://h:1?handoff=nixl_push&engine_id=", "one id for each rank"),
        ("openai+http://h:1?handoff=nixl&engine_id=a", "one id for each rank"),
        ("openai+http://h:1?handoff=nixl&handoff_port=0", "handoff_port is not in 1..65535"),
        ("openai+http://h:1?tp=x", "tp is not in"),
    ],
)
def test_what_is_wrong_with_a_handoff(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_worker_url(text)
