"""The settings of channels to engines, and what happens without the library that carries calls."""

from collections.abc import Iterator

import pytest
from support.polling import until
from support.servers.http2_client import listening

from dynamo_router.base.errors import ConfigError
from dynamo_router.transport.http2 import Http2Server, Library, ServerCall, ServerLimits, library
from dynamo_router.workers.channels import WINDOW_BYTES, ConnectionPolicy, EngineChannel

FIRST_WINDOW = ConnectionPolicy().channel_limits().first_window_bytes


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(library, "load_library", lambda: Library(None, reason="none found"))
    yield


@pytest.mark.usefixtures("no_library")
def test_without_the_library_one_error_says_what_to_install() -> None:
    text = "gRPC needs nghttp2: none found; install the package pycurl or the system's nghttp2"
    with pytest.raises(ConfigError) as caught:
        EngineChannel("127.0.0.1:1", ConnectionPolicy())
    assert str(caught.value) == text
    with pytest.raises(ConfigError) as caught:
        Http2Server()
    assert str(caught.value) == text


def test_settings_bound_the_channel() -> None:
    policy = ConnectionPolicy(
        connect_timeout_s=3.0, keepalive_s=4.0, keepalive_timeout_s=2.0, max_message_bytes=1000
    )
    limits = policy.channel_limits()
    assert (limits.connect_timeout_s, limits.keepalive_s, limits.keepalive_timeout_s) == (3, 4, 2)
    assert limits.max_message_bytes == 1000


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        ConnectionPolicy(keepalive_s=0.0)
    assert caught.value.key == "keepalive_s"


async def test_an_answer_that_nobody_reads_stays_with_the_engine_and_events_come() -> None:
    sent, size, buffer = {"/a.B/answer": 0, "/a.B/events": 0}, 1000, 4 << 10

    async def flood(call: ServerCall, method: str) -> None:
        while True:
            await call.write(bytes(size))
            sent[method] += size

    methods = {name: lambda call, name=name: flood(call, name) for name in sent}
    async with listening(methods, ServerLimits(send_buffer_bytes=buffer)) as (_, port):
        channel = EngineChannel(f"127.0.0.1:{port}", ConnectionPolicy())
        answer = channel.stream("/a.B/answer", b"")
        await until(lambda: sent["/a.B/answer"] > FIRST_WINDOW - 2 * size)
        events = channel.events("/a.B/events", b"")
        await until(lambda: sent["/a.B/events"] > WINDOW_BYTES - 10 * size)
        assert sent["/a.B/answer"] < FIRST_WINDOW + buffer + 4 * size < WINDOW_BYTES // 8
        answer.cancel()
        events.cancel()
        await channel.close()
