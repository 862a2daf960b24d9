"""Prefill workers that `serve` finds in a store, beside the workers that decode."""

from typing import Any

import pytest
from support.polling import until
from support.servers.discovered_fleet import (
    Backend,
    completed,
    finding,
    on_stores,
    registered,
    until_ready,
)

from dynamo_router.base.errors import ConfigError
from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.server.config import ServeConfig

ALWAYS = DisaggConfig(disagg="always")


@on_stores("file", "etcd")
@pytest.mark.parametrize("dialect", ["trtllm", "dynamo"])
@pytest.mark.parametrize("component", ["backend", "prefill"])
async def test_they_are_found_and_go(backend: Backend, dialect: str, component: str) -> None:
    """At the component of the others, or at one of their own, as Dynamo's have it."""
    decoding = {"disaggregation_mode": "decode", "dialect": dialect}
    computing = {"disaggregation_mode": "prefill", "dialect": dialect, "component": component}
    async with (
        registered(backend, 2, **decoding),
        finding(backend, prefill_component=component, disagg=ALWAYS) as ports,
    ):
        pools: Any = ports.server._server.pools
        await until_ready(ports, 2)
        alone = await completed(ports, "r0")
        async with registered(backend, 1, **computing) as fleet:
            await until(lambda: len(pools.prefill.monitor.ready_clients()) == 1)
            (entry,) = pools.prefill.router.registry.entries()
            assert entry.worker_id == fleet.worker_ids[0]
            assert await completed(ports, "r1") == alone
            rule = ports.server.pool.handoffs.rule
            assert rule.decisions["remote_always"] == 1
            await until_ready(ports, 2)
        await until(lambda: not pools.prefill.monitor.ready_clients())
        assert await completed(ports, "r2") == alone
        assert rule.decisions["remote_always"] == 1


def test_a_component_needs_a_store() -> None:
    with pytest.raises(ConfigError, match="prefill_component"):
        ServeConfig(prefill_component="prefill")
