"""A router in front of prefill and decode engines of one dialect, that are fakes."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
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
SOON_S = 0.4
TOKENS = 48


class Failures(Counter[str]):
    """Of a pool by phase; `hear` is called after each, before another pair is tried."""

    def __init__(self, counts: Counter[str], hear: Callable[[], None]) -> None:
        super().__init__(counts)
        self._hear = hear

    def __setitem__(self, phase: str, count: int) -> None:
        super().__setitem__(phase, count)
        self._hear()


class Scene:
    """A router in front of prefill and decode engines of one dialect."""

    def __init__(self, ports: Ports, fabric: Fabric, prefill: list[Wire], decode: list[Wire]):
        self.ports, self.fabric = ports, fabric
        self.prefill, self.decode = prefill, decode
        self.pools: Any = ports.server._server.pools
        self._has_short_timeouts = False

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
            rule = pool.handoffs.rule
            assert not rule._sent and not rule._landing
        await until(lambda: not self.fabric.waiting)
        self.fabric.now += LEASE_S + 2
        await until(lambda: not self.fabric.blocks)

    def give(self, wires: list[Wire], fault: str) -> None:
        """The first request that reaches any of these engines has the fault. One that hangs is
        given up after SOON_S; all other time-outs stay long, which a busy machine needs."""
        faults = [fault]
        for wire in wires:
            wire.legs.faults = faults
        if fault != "hang":
            return
        outcomes = self.pools.workers.handoffs.outcomes
        of_prefill = wires[0].role == "prefill"
        name = "disagg_prefill_timeout_s" if of_prefill else "disagg_handoff_timeout_s"

        def lengthen() -> None:
            if not faults:  # else it was given up before it read the request
                outcomes.limits = LONG

        outcomes.limits = replace(LONG, **{name: SOON_S})
        outcomes.failures = Failures(outcomes.failures, lengthen)
        self._has_short_timeouts = True

    async def failed(self, phase: str, count: int = 1) -> None:
        """Return once the metrics have that many failures; or more, if one was a time-out that may
        be over before the engine reads the request."""
        sample = f'dynamo_router_disagg_failures_total{{phase="{phase}"}}'

        async def counted() -> bool:
            return (await self.ports.metrics()).get(sample, 0) >= count

        if self._has_short_timeouts and count:
            await until(counted)
        else:
            await self.ports.shows(sample, count)


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
