"""A configuration is looked at before it is used: what has no effect, what cannot be."""

import errno
import socket
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.frontend.config import ModelFrontendConfig, ServeFrontendConfig
from dynamo_router.process.settings import options_of, resolve
from dynamo_router.process.system import why_cannot_listen
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.config import ServeConfig
from dynamo_router.server.config_check import RULES, check_snapshot_path, vain_settings


def vain(**flags: object) -> list[str]:
    given = {key.replace("__", "."): value for key, value in flags.items()}
    return [
        line.partition(" (")[0] for line in vain_settings(resolve(ServeConfig, given, environ={}))
    ]


def test_what_has_no_effect_is_named_with_where_it_came_from_and_why() -> None:
    flags = {"router.mode": "round-robin", "router.router_temperature": 3.0}
    resolved = resolve(ServeConfig, flags, environ={"DYN_ROUTER_POLICY": ""})
    assert vain_settings(resolved) == [
        "router.router_temperature (flag --router-temperature) has no effect: the mode is "
        "round-robin"
    ]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({}, []),
        ({"router__mode": "random", "router__policy": "forecast"}, ["router.policy"]),
        ({"router__router_temperature": 3.0}, []),
        ({"router__router_ttl_secs": 1.0}, []),
        ({"router__router_ttl_secs": 1.0, "router__use_kv_events": False}, []),
        ({"nats": "nats://h:1", "router__use_kv_events": False}, ["nats"]),
        ({"router__admission__queue_limit": 5}, []),
        (
            {"router__admission__queue_limit": 5, "router__policy": "dynamo"},
            ["router.admission.queue_limit"],
        ),
        (
            {"router__admission__queue_limit": 5, "router__admission__hold": False},
            ["router.admission.queue_limit"],
        ),
        (
            {"router__admission__queue_threshold": 2.0, "router__admission__queue_limit": 5,
             "router__policy": "dynamo"},
            [],
        ),
        (
            {"router__admission__queue_threshold": 2.0, "router__admission__hold": True},
            ["router.admission.hold"],
        ),
        ({"index_snapshot_interval_s": 5.0}, ["index_snapshot_interval_s"]),
        ({"index_snapshot_interval_s": 5.0, "index_snapshot": "f"}, []),
        ({"speedup_ratio": 5.0}, ["speedup_ratio"]),
        ({"speedup_ratio": 5.0, "mockers": 1}, []),
    ],
)  # fmt: skip
def test_settings_without_effect(flags: dict[str, object], named: list[str]) -> None:
    assert vain(**flags) == named


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, None),
        ({"event_sources": "zmq"}, None),
        ({"event_sources": "grpc"}, "event_sources is grpc"),
        ({"event_sources": "none"}, "KV events are not used"),
        ({"router.use_kv_events": False}, "KV events are not used"),
    ],
)
def test_a_stream_that_is_not_read_is_named(settings: dict[str, object], why: str | None) -> None:
    workers = ("openai+http://a:1?events=tcp://a:2", "grpc://b:1", "grpc+dns://c:1")
    lines = vain_settings(resolve(ServeConfig, {"workers": workers, **settings}, environ={}))
    wanted = f"events=tcp://a:2 of worker a:1 has no effect: {why}"
    assert lines == ([] if why is None else [wanted])


def test_what_is_of_grpc_alone_has_no_effect_on_a_frontend() -> None:
    flags = {"discovery": "file", "peers.max_questions": 5, "peers.max_requests": 5}
    resolved = resolve(ModelFrontendConfig, flags, environ={})
    assert vain_settings(resolved) == [
        "peers.max_questions (flag --max-questions) has no effect: there is no gRPC port"
    ]
    assert vain(peers__max_questions=5) == []


def test_the_rules_speak_of_settings_that_there_are() -> None:
    known = {spec.key for spec in options_of(ServeFrontendConfig)}
    assert {key for rule in RULES for key in rule.keys} <= known


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"namespace": ""}, "namespace: must not be empty"),
        ({"component": ""}, "component: must not be empty"),
        ({"request_timeout_s": 1e-5}, "request_timeout_s: 1e-05 must be finite and at least 0.01"),
        ({"router": KvRouterConfig(active_request_expiry_secs=0.5)}, "0.5 must be at least 5"),
        ({"max_attempts": 10**400}, "max_attempts: 1000"),
    ],
)
def test_what_could_not_work_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ServeConfig(**settings)  # type: ignore[arg-type]  # some of it is the point


@pytest.mark.parametrize("section", ["limits.queue_timeout_s", "health.probe_interval_s"])
def test_time_outs_that_would_only_keep_us_busy_are_refused(section: str) -> None:
    with pytest.raises(ConfigError, match="1e-05 must be finite and at least 0.01"):
        resolve(ServeConfig, {section: 1e-5}, environ={})


@pytest.mark.parametrize("key", ["port", "router.block_size", "drain_timeout_s"])
def test_numbers_of_hundreds_of_digits_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="is not a"):
        resolve(ServeConfig, {key: 10**400}, environ={})


def test_a_snapshot_that_could_not_be_written_is_found_at_once(tmp_path: Path) -> None:
    kept = tmp_path / "index"
    check_snapshot_path(str(kept))
    kept.write_text("as it is")
    check_snapshot_path(str(kept))
    assert kept.read_text() == "as it is" and list(tmp_path.iterdir()) == [kept]
    for path, said in (
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "index", "No such file or directory"),
        (kept / "index", "Not a directory"),
    ):
        with pytest.raises(ConfigError, match=f"index_snapshot: cannot write .*: {said}") as caught:
            check_snapshot_path(str(path))
        assert caught.value.key == "index_snapshot"


def test_why_an_address_cannot_be_listened_on() -> None:
    assert why_cannot_listen("256.1.1.1", 80) == ("host", "it is no address or known name")
    assert why_cannot_listen("192.0.2.1", 0)[0] == "host"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        key, reason = why_cannot_listen("127.0.0.1", taken.getsockname()[1])
    assert (key, reason) == ("port", OSError(errno.EADDRINUSE, "Address already in use").strerror)


@pytest.mark.parametrize("port", [None, "9002"])
def test_settings_of_the_picker_need_its_port(port: str | None) -> None:
    flags: dict[str, object] = {"fallbacks": 1, "workers": ("openai+http://10.0.0.1:80",)}
    if port is not None:
        flags["ext_proc_port"] = int(port)
    found = vain_settings(resolve(ServeFrontendConfig, flags, environ={}))
    wanted = ["fallbacks (flag --fallbacks) has no effect: ext_proc_port is not given"]
    assert found == (wanted if port is None else [])
