"""What carries requests to engines: which of the two, and their settings."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from dynamo_router.base.errors import ConfigError
from dynamo_router.process.settings import resolve
from dynamo_router.server.config import ServeConfig
from dynamo_router.transport.http2 import Library
from dynamo_router.workers.channels import GRPC_AIO, NGHTTP2, ConnectionPolicy, data_path_of, policy


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    policy._warn_once.cache_clear()
    monkeypatch.setattr(policy, "load_library", lambda: Library(None, reason="not found anywhere"))
    yield
    policy._warn_once.cache_clear()


@pytest.mark.usefixtures("no_library")
def test_without_the_library_grpc_aio_serves_which_is_said_once() -> None:
    with capture_logs() as logs:
        for _ in range(3):
            assert data_path_of(ConnectionPolicy(data_path=NGHTTP2)) == GRPC_AIO
    assert [(entry["log_level"], entry["reason"]) for entry in logs] == [
        ("warning", "not found anywhere")
    ]


@pytest.mark.usefixtures("no_library")
def test_who_asks_for_grpc_aio_is_told_nothing() -> None:
    with capture_logs() as logs:
        assert data_path_of(ConnectionPolicy(data_path=GRPC_AIO)) == GRPC_AIO
    assert not logs


def test_with_the_library_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "load_library", lambda: Library("1.70.0"))
    assert data_path_of(ConnectionPolicy(data_path=NGHTTP2)) == NGHTTP2


@pytest.mark.parametrize("name", ["DYNAMO_ROUTER_DATA_PATH", "DYNAMO_ROUTER_CONNECTION_DATA_PATH"])
def test_the_environment_forces_one(name: str) -> None:
    found = resolve(ServeConfig, {}, environ={name: GRPC_AIO})
    assert found.config.connection.data_path == GRPC_AIO


def test_others_are_refused() -> None:
    with pytest.raises(ConfigError, match="'http3' is not one of nghttp2, grpc.aio") as caught:
        ConnectionPolicy(data_path="http3")
    assert caught.value.key == "data_path"


def test_both_keep_to_the_same_limits() -> None:
    asked = ConnectionPolicy(
        connect_timeout_s=3.0, keepalive_s=4.0, keepalive_timeout_s=2.0, max_message_bytes=1000
    )
    limits, options = asked.channel_limits(), dict(asked.channel_options())
    assert options["grpc.min_reconnect_backoff_ms"] == limits.connect_timeout_s * 1e3 == 3000
    assert options["grpc.keepalive_time_ms"] == limits.keepalive_s * 1e3 == 4000
    assert options["grpc.keepalive_timeout_ms"] == limits.keepalive_timeout_s * 1e3 == 2000
    assert options["grpc.max_receive_message_length"] == limits.max_message_bytes == 1000
    assert options["grpc.http2.lookahead_bytes"] == limits.window_bytes
    assert options["grpc.initial_reconnect_backoff_ms"] == limits.first_backoff_s * 1e3
    assert options["grpc.max_reconnect_backoff_ms"] == limits.max_backoff_s * 1e3
