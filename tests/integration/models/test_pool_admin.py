"""A frontend's port, and workers of its pools, changed by admin calls."""

import asyncio
import socket
from typing import Any

import pytest
from support.polling import until
from support.servers.discovered_fleet import Backend, registered
from support.servers.model_serving import TINY, ModelClient, ModelServer, model_serving

from dynamo_router.base.errors import ConfigError
from dynamo_router.frontend.config import ModelFrontendConfig


async def test_a_taken_port_is_named_and_nothing_is_left(backend: Backend) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = ModelServer(ModelFrontendConfig(http_port=port, discovery=backend.config))
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            await server.start()
        await server.close()
    assert caught.value.key == "http_port"
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await until(lambda: all(task.done() for task in others))


async def call(client: ModelClient, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with client.session.request(method, f"{client.url}{path}", json=body) as answer:
        return answer.status, await answer.json()


async def test_a_call_goes_to_the_pool_that_has_the_worker(backend: Backend) -> None:
    async with (
        registered(backend, 2, model_id="a", engine=TINY) as fleet,
        registered(backend, 1, model_id="b", engine=TINY) as other,
        model_serving(backend) as client,
    ):
        await client.until_shares(a=2, b=1)
        _, told = await client.get("/workers")
        models = {row["worker_id"]: row["model"] for row in told["workers"]}
        assert models == {fleet.worker_ids[0]: "a", fleet.worker_ids[1]: "a"} | {
            other.worker_ids[0]: "b"
        }
        assert all(row["pool"] for row in told["workers"])
        worker = f"/workers/{fleet.worker_ids[0]}"
        status, told = await call(client, "POST", f"{worker}/drain", {})
        assert (status, told["state"], told["drained"]) == (200, "draining", True)
        await client.until_shares(a=1, b=1)
        address = other.addresses[0]  # the name of a worker may be its address
        status, told = await call(client, "PATCH", f"/workers/{address}", {"weight": 0.25})
        assert (status, told["weight"]) == (200, 0.25)
        assert (await call(client, "DELETE", worker))[0] == 200
        assert await client.worker_of("a") == fleet.worker_ids[1]


async def test_what_cannot_be_is_refused_in_words(backend: Backend) -> None:
    async with (
        registered(backend, 1, model_id="a", engine=TINY) as fleet,
        model_serving(backend) as client,
    ):
        await client.until_shares(a=1)
        worker = f"/workers/{fleet.worker_ids[0]}"
        for method, path, body, status, words in (
            ("POST", "/workers", {"url": "grpc://h:1"}, 409, "with their model cards"),
            ("POST", "/workers", {"address": "h"}, 400, "bad body"),
            ("POST", "/workers/7/drain", {}, 404, "there is no worker '7'"),
            ("DELETE", "/workers/nobody", None, 404, "there is no worker 'nobody'"),
            ("PATCH", worker, {"weight": 2}, 400, "weight"),
            ("PATCH", worker, {}, 400, "bad body"),
            ("PUT", worker, {}, 405, "does not take PUT"),
        ):
            found, told = await call(client, method, path, body)
            assert found == status and words in told["error"]["message"], (method, path, told)
