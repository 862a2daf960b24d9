"""dynamo-router planner: plans until a signal, and leaves what is open to the next one."""

import asyncio
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
import uvloop

from ...base.clock import SystemClock
from ...base.errors import ConfigError
from ...base.urls import redact_text
from ...process.logs import log_to_stderr
from ...process.standard_output import print_line
from ...process.supervised import stopped, supervise
from ...process.system import StopSignals
from ...runtime.kv_stores import KeyValueStore, StoreError
from ...transport.security import client_context, read_secret
from ...workers.records import DECODE, PREFILL
from ..connectors import (
    Connector,
    KubernetesScale,
    LocalEngines,
    MetricTargets,
    VirtualFollower,
    VirtualKeys,
    mocker_command,
)
from ..fleet import Role
from .brain import PlanningBrain, Setup
from .change_log import ChangeLog
from .config import KUBERNETES, LOCAL, VIRTUAL, PlannerConfig
from .fleet_watch import FleetWatch
from .leader import Leader
from .live_planner import LivePlanner
from .router_client import RouterClient
from .sight import Sight
from .status_page import StatusPage
from .transaction import Limits

log = structlog.get_logger(__name__)

_MODES: dict[Role, str] = {"aggregated": "agg", "prefill": "prefill", "decode": "decode"}


def run(config: PlannerConfig) -> int:
    """The command. 1, and a line on why, if it cannot start."""
    output = log_to_stderr(config.log_level, config.log_format)
    try:
        uvloop.run(run_planner(config))
    except ConfigError as error:
        print(f"dynamo-router: {redact_text(str(error))}", file=sys.stderr)
        return 1
    finally:
        output.close()
    return 0


async def run_planner(config: PlannerConfig) -> None:
    """Plan, or follow keys, until SIGINT or SIGTERM. ConfigError if it cannot start."""
    async with AsyncExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        if config.place.follow:
            await _follow(config, stack)
            print_line("dynamo-router planner ready: follows keys")
        else:
            planner, page = await _planner(config, stack)
            print_line(f"dynamo-router planner ready: http {page.address}")
            turns = supervise("planner-turns", lambda: _turns(planner, config.look_every_s))
            stack.push_async_callback(stopped, turns)
        await signals.drain.wait()


async def _turns(planner: LivePlanner, every_s: float) -> None:
    while True:
        await planner.turn()
        await asyncio.sleep(every_s)


async def _follow(config: PlannerConfig, stack: AsyncExitStack) -> None:
    store = _store(config, config.decisions_backend)
    stack.push_async_callback(store.close)
    follower = VirtualFollower(store, config.namespace, _local(config), _other_role(config))
    stack.push_async_callback(follower.close)
    await follower.start()


async def _planner(config: PlannerConfig, stack: AsyncExitStack) -> tuple[LivePlanner, StatusPage]:
    clock = SystemClock()
    store = _store(config, config.decisions_backend)
    stack.push_async_callback(store.close)
    watch = FleetWatch(_store(config, config.backend), config.namespace, config.model, clock)
    stack.push_async_callback(watch.close)
    routers = [
        await stack.enter_async_context(_router(config, url)) for url in config.access.routers
    ]
    connector = _connector(config, store, clock)
    stack.push_async_callback(connector.close)
    await connector.start()
    name = f"{socket.gethostname()}-{os.getpid()}"
    leader = Leader(store, config.namespace, name, clock)
    stack.push_async_callback(leader.close)
    try:
        await watch.start()
        if not config.dry_run:
            await leader.start()
    except StoreError as error:
        raise ConfigError(f"discovery: {error}", key="discovery") from None
    if config.model is None and len(watch.models) > 1:
        named = ", ".join(sorted(watch.models))
        raise ConfigError(f"model: there are several, name one: {named}", key="model")
    setup = Setup(
        config.planning, config.objectives, config.constraints, config.engine, config.engine_speed
    )
    brain = PlanningBrain(setup, lambda: next((card for card, _ in watch.engines.values()), None))
    stack.push_async_callback(brain.close)
    planner = LivePlanner(
        name=name,
        engines=watch,
        registry=f"namespace {config.namespace!r} of --discovery {config.backend}",
        routers=routers,
        sight=Sight(config.planning.window_s),
        brain=brain,
        connector=connector,
        connector_name=config.place.connector,
        leader=leader,
        changes=ChangeLog(store, config.namespace, name),
        limits=Limits(
            config.constraints.engines_max,
            config.constraints.costs,
            config.start_limit_s,
            config.drain_limit_s,
            config.admit_s,
            config.parcel_s,
        ),
        least=config.least,
        window_s=config.planning.window_s,
        clock=clock,
        dry_run=config.dry_run,
        show=print_line,
    )
    stack.push_async_callback(planner.close)
    page = StatusPage(planner)
    stack.push_async_callback(page.close)
    await page.start(config.host, config.port)
    return planner, page


@asynccontextmanager
async def _router(config: PlannerConfig, url: str) -> AsyncIterator[RouterClient]:
    access = config.access
    token = access.router_token_file
    client = RouterClient(
        url,
        None if token is None else read_secret(token, "router_token_file"),
        client_context(access.router_tls_ca, "router_tls_ca") if url.startswith("https") else None,
        config.model,
    )
    try:
        yield client
    finally:
        await client.close()


def _store(config: PlannerConfig, backend: str) -> KeyValueStore:
    store = config.discovery.open(backend)
    assert store is not None, "static is refused with the settings"
    return store


def _connector(config: PlannerConfig, store: KeyValueStore, clock: SystemClock) -> Connector:
    place = config.place
    if place.connector == LOCAL:
        # A dry run starts none: those that are registered count, of all who start engines.
        return MetricTargets() if config.dry_run else _local(config)
    if place.connector == VIRTUAL:
        return VirtualKeys(store, config.namespace, _other_role(config), clock)
    if place.connector == KUBERNETES:
        from ...runtime.kv_stores import KubernetesApi, KubernetesConfig  # an extra

        kubernetes = KubernetesConfig.from_environment()
        return KubernetesScale(KubernetesApi(kubernetes), kubernetes.namespace, place.deployment_of)
    return MetricTargets()


def _local(config: PlannerConfig) -> LocalEngines:
    given = shlex.split(config.place.engine_arguments)
    commands = {}
    for role in config.roles_used:
        arguments = [
            *("--discovery", config.backend, "--namespace", config.namespace),
            *("--disaggregation-mode", _MODES[role]),
        ]
        if role == PREFILL:
            arguments += ["--component", "prefill"]
        commands[role] = mocker_command([*arguments, *given])
    return LocalEngines(commands)


def _other_role(config: PlannerConfig) -> Role:
    return "decode" if DECODE in config.roles_used else "aggregated"
