"""The faults that a schedule names: how each begins and ends in the world."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from support.adversity.fault_proxy import garbage
from support.adversity.schedule import FaultSpec
from support.adversity.world import World

CODES = ("INTERNAL", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "CANCELLED")


@asynccontextmanager
async def suffering(world: World, fault: FaultSpec) -> AsyncIterator[None]:
    """The fault is there from the beginning of the block to its end."""
    if fault.name.startswith("nats_"):
        await _begin_of_nats(world, fault)
    elif fault.name.startswith("client_"):
        await _begin_of_clients(world, fault)
    else:
        await _begin(world, fault)
    try:
        yield
    finally:
        await _end(world, fault)


async def _begin(world: World, fault: FaultSpec) -> None:
    engine, degree = fault.engine, fault.degree
    proxy, share = world.proxies[engine], 0.5 * degree
    seed = int(100 * degree)
    match fault.name:
        case "crash":
            await world.fault(engine, crash=True)
        case "restart":
            await world.restart(engine)
        case "hang":
            await world.fault(engine, hang=True)
        case "kill":
            await world.kill_alone()
        case "freeze":
            world.alone.send(signal.SIGSTOP)
        case "cut":
            proxy.cut()
        case "refuse":
            await proxy.refuse()
            proxy.cut()
        case "half_open":
            proxy.stall("down" if degree < 0.5 else "up")
        case "deaf":
            proxy.stall("up", "down")
            proxy.cut()
        case "garbage":
            proxy.inject("down" if degree < 0.5 else "up", garbage(seed))
        case "slow":
            await world.fault(engine, slow=1 + 4 * degree)
        case "fail":
            await world.fault(engine, fail=CODES[seed % len(CODES)])
        case "empty":
            await world.fault(engine, fail="OK")
        case "latency":
            proxy.latency_s = 0.2 * degree
        case "bandwidth":
            proxy.bytes_per_s = 20_000 / degree
        case "lossy":
            await world.fault(engine, drop=share, seed=seed)
        case "doubling":
            await world.fault(engine, duplicate=share, seed=seed)
        case "shuffling":
            await world.fault(engine, reorder=share, seed=seed)
        case unknown:
            raise ValueError(f"there is no fault {unknown!r}")


async def _begin_of_nats(world: World, fault: FaultSpec) -> None:
    seed, share = int(100 * fault.degree), 0.5 * fault.degree
    match fault.name:
        case "nats_cut":
            world.nats_proxy.cut()
        case "nats_stall":
            world.nats_proxy.stall("up", "down")
        case "nats_kill":
            await world.kill_nats()
        case "nats_loss":
            world.event_faults.set(seed, loss=share)
        case "nats_twice":
            world.event_faults.set(seed, twice=share)
        case "nats_late":
            world.event_faults.set(seed, late=share)
        case unknown:
            raise ValueError(f"there is no fault {unknown!r}")


async def _begin_of_clients(world: World, fault: FaultSpec) -> None:
    proxy = world.client_proxy
    match fault.name:
        case "client_cut":
            proxy.cut()
        case "client_stall":
            proxy.stall("up" if fault.degree < 0.5 else "down")
        case "client_latency":
            proxy.latency_s = 0.3 * fault.degree
        case "client_garbage":
            proxy.inject("up" if fault.degree < 0.5 else "down", garbage(int(100 * fault.degree)))
        case unknown:
            raise ValueError(f"there is no fault {unknown!r}")


async def _end(world: World, fault: FaultSpec) -> None:
    match fault.name:
        case "kill":
            await world.start_alone()
        case "freeze":
            world.alone.send(signal.SIGCONT)
        case "crash" | "hang" | "slow" | "fail" | "empty" | "lossy" | "doubling" | "shuffling":
            await world.fault(fault.engine)
        case "nats_kill":
            await world.nats.start()
        case "nats_loss" | "nats_twice" | "nats_late":
            world.event_faults.set(0)
        case "nats_cut" | "nats_stall":
            await world.nats_proxy.heal()
        case _ if fault.name.startswith("client_"):
            await world.client_proxy.heal()
        case _:
            await world.proxies[fault.engine].heal()
