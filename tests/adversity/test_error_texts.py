"""What a client is told of a failure at an engine: what went wrong, in the engine's words or ours,
without credentials, and without addresses and names of the cluster. Each listener, each engine.
"""

from itertools import product

import pytest
from support.adversity.log_hygiene import SECRET
from support.adversity.one_engine import (
    KINDS,
    LISTENERS,
    NUMBER,
    PATH,
    Dynamo,
    ask_envoy,
    one_engine,
)

TEXT = f"no room: tried nats://user:{SECRET}@broker:4222, then https://{SECRET}@h/x"
LONG = f"no room: {'x' * 950} nats://user:{SECRET}{'y' * 200}@broker:4222"
"""Cut where every client can take it, the URL has no @ left."""


@pytest.mark.parametrize("text", [TEXT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("begun", [False, True], ids=["refused", "begun"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_clients_error_has_no_credentials_and_no_address(
    kind: str, begun: bool, text: str
) -> None:
    async with one_engine(kind, text=text, begun=begun) as (served, fleet):
        for ask, streamed in product(LISTENERS.values(), (False, True)):
            shown = await ask(served, streamed)
            assert "no room" in shown, shown
            assert SECRET not in shown, shown
            for name in (*fleet.names, str(NUMBER)):
                assert name not in shown.replace(f"x-dynamo-worker-id', value='{NUMBER}", ""), shown


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("kind", KINDS)
async def test_an_engine_that_is_gone_is_not_named(kind: str, listener: str) -> None:
    """Its address stands in what the transport says of it."""
    async with one_engine(kind, text=TEXT) as (served, fleet):
        if isinstance(fleet, Dynamo):
            await fleet.server.close()
        for engine in fleet.engines:
            await engine.stop()
        for streamed in (False, True):
            shown = await LISTENERS[listener](served, streamed)
            for name in (*fleet.names, "127.0.0.1", str(NUMBER)):
                assert name not in shown, shown


@pytest.mark.parametrize("listener", LISTENERS)
async def test_an_endpoint_that_a_worker_does_not_have_is_not_named(listener: str) -> None:
    async with one_engine("dynamo", text=TEXT) as (served, fleet):
        assert isinstance(fleet, Dynamo)
        fleet.server.remove(PATH)
        shown = await LISTENERS[listener](served, False)
        assert "takes no requests" in shown or "no worker is ready" in shown, shown
        assert PATH not in shown and "127.0.0.1" not in shown, shown


PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")


@pytest.mark.parametrize("path", PATHS)
async def test_a_worker_that_envoy_cannot_call_is_not_named(path: str) -> None:
    """It speaks no HTTP, and no frontend stands beside it."""
    async with one_engine("dynamo", text=TEXT) as (served, fleet):
        for streamed in (False, True):
            shown = await ask_envoy(served, streamed, path)
            assert "code: 503" in shown and "has no address that Envoy could call" in shown, shown
            for name in (*fleet.names, "127.0.0.1", str(NUMBER)):
                assert name not in shown, shown


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
async def test_why_no_worker_is_ready_is_not_shown_to_envoys_clients(kind: str, path: str) -> None:
    async with one_engine(kind, text=TEXT) as (served, fleet):
        for engine in served.server.monitor.engines:
            served.server.monitor.drain(engine)
        for streamed in (False, True):
            shown = await ask_envoy(served, streamed, path)
            assert "code: 503" in shown, shown
            for name in (*fleet.names, "127.0.0.1", str(NUMBER)):
                assert name not in shown, shown
