"""A router in front of prefill and decode engines of one dialect, that are fakes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from support.fake_engine import FakeEngine, prompt
from support.handoffs.fabric import LEASE_S, Fabric
from support.handoffs.wire import Wire
from support.handoffs.wires import WIRES
from support.polling import until
from support.serving import Ports, serving

from dynamo_router.router.disagg import DisaggConfig
from dynamo_router.server.request_limits import HandoffLimits

ALWAYS = DisaggConfig(disagg="always")
LONG = HandoffLimits()
TOKENS = 48


class Scene:
    """A router in front of prefill and decode engines of one dialect."""

    def __init__(self, ports: Ports, fabric: Fabric, prefill: list[Wire], decode: list[Wire]):
        self.ports, self.fabric = ports, fabric
        self.prefill, self.decode = prefill, decode
        self.pools: Any = ports.server._server.pools

    async def answer(self, request_id: str = "r1", tokens: int = TOKENS) -> Any:
        """The last message; the chunks before it have the same tokens."""
        found = await self.ports.answers(prompt(request_id, tokens))
        assert {each.request_id for each in found} == {request_id}
        streamed = [token for each in found for token in each.chunk.token_ids]
        last = found[-1].complete
        assert list(last.output_token_ids) == streamed
        return last

    async def settled(self) -> None:
        """Nothing is booked anywhere, nor held by an engine, leases apart."""
        for pool in self.pools.running:
            await until(lambda pool=pool: not int(pool.router.slots.own_requests().sum()))
            await until(lambda pool=pool: not int(pool.router.slots.active_blocks().sum()))
            assert not pool.prefills
        await until(lambda: not self.fabric.waiting)
        self.fabric.now += LEASE_S + 2
        await until(lambda: not self.fabric.blocks)

    async def failed(self, phase: str, count: int = 1) -> None:
        await self.ports.shows(f'dynamo_router_disagg_failures_total{{phase="{phase}"}}', count)


@asynccontextmanager
async def scene(
    name: str, *, prefill: int = 1, decode: int = 1, handoff: HandoffLimits = LONG, **more: Any
) -> AsyncIterator[Scene]:
    make = WIRES[name]
    fabric = Fabric(make.shape, make.lease_s)  # type: ignore[attr-defined]
    sources = [make(fabric, "prefill") for _ in range(prefill)]
    targets = [make(fabric, "decode") for _ in range(decode)]
    async with AsyncExitStack() as stack:
        for wire in (*sources, *targets):
            await wire.enter(stack)
        more = {"disagg": ALWAYS, "handoff": handoff, **more}
        # Named, so that there may be prefill workers; those of a test are attached after it.
        named = await stack.enter_async_context(FakeEngine())
        ports = await stack.enter_async_context(serving(prefill_workers=(named.url,), **more))
        found = Scene(ports, fabric, sources, targets)
        await found.pools.prefill.monitor.remove(named.url)
        for wires, pool in ((sources, found.pools.prefill), (targets, found.pools.workers)):
            for count, wire in enumerate(wires, 1):
                wire.attach(pool.monitor)
                monitor = pool.monitor
                await until(lambda m=monitor, n=count: len(m.ready_clients()) == n)
        yield found
        await found.settled()
        assert not fabric.recomputed


async def aggregated(name: str) -> Any:
    """The same request before a worker that runs all of it."""
    async with AsyncExitStack() as stack:
        wire = WIRES[name](Fabric("relay"), "")
        await wire.enter(stack)
        ports = await stack.enter_async_context(serving())
        wire.attach(ports.server.monitor)
        await until(lambda: bool(ports.server.monitor.ready_clients()))
        return (await ports.answers(prompt("r1", TOKENS)))[-1].complete
