"""docs/features.md: each command is started, and each row of the matrix tried on it."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from grpc import aio
from support.epp.messages import HEAD, Answered, body, request_headers
from support.features.served_command import (
    COMMANDS,
    FRONTEND,
    PROFILES,
    PROMPT,
    TOKEN,
    Served,
    until_ready,
)
from support.places import ROOT
from support.polling import until
from support.servers.discovered_fleet import backend_of

from dynamo_router.engines.mocker.faults import Fault
from dynamo_router.frontend.epp.endpoints import INSTANCE_KEY
from dynamo_router.frontend.epp.exchange import DESTINATION
from dynamo_router.frontend.epp.picker import PATH
from dynamo_router.frontend.picker_config import PickerConfig
from dynamo_router.process.settings import options_of
from dynamo_router.router.proto import RouterServiceStub
from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.workers.trtllm_proto import SERVICE, pb


class Row(NamedTuple):
    """A feature: its flags, and what each command says of it."""

    name: str
    flags: list[str]
    cells: dict[str, str]
    of_picker: str
    """what `epp` says of it, which Envoy stands before"""


def read_rows() -> list[Row]:
    rows = []
    for line in (ROOT / "docs" / "features.md").read_text().splitlines():
        if line.startswith("| ") and "| feature |" not in line:
            name, flags, *cells, picker = (cell.strip() for cell in line.strip("|").split("|"))
            found = re.findall(r"`(--[\w-]+)`", flags)
            rows.append(Row(name, found, dict(zip(COMMANDS, cells, strict=True)), picker))
    return rows


ROWS = {row.name: row for row in read_rows()}


# What each row of the matrix is seen by. Probes of one profile share a server.

TOKENS_OF_A_STREAM = 200

Probe = Callable[[Served], Awaitable[bool]]
PROBES: dict[str, tuple[str, Probe]] = {}


def probe(name: str, profile: str) -> Callable[[Probe], Probe]:
    def note(function: Probe) -> Probe:
        PROBES[name] = profile, function
        return function

    return note


def shows(name: str, *metrics: str, profile: str = "nats") -> None:
    """A row that is seen by samples of metrics."""

    @probe(name, profile)
    async def all_there(served: Served) -> bool:
        return None not in [await served.value(metric) for metric in metrics]


def counts(name: str, metric: str, profile: str = "nats") -> None:
    """A row that is seen by a metric that requests let grow."""

    @probe(name, profile)
    async def grown(served: Served) -> bool:
        return await served.grows(metric)


EVENTS = "dynamo_component_kv_cache_events_applied"
counts("KV events over NATS", EVENTS)
counts("KV events asked of engines over gRPC", EVENTS, "grpc")
counts("KV events over ZMQ", EVENTS, "zmq")
counts("KV events kept by JetStream", EVENTS, "jetstream")
counts("health and outliers", "dynamo_router_workers")
shows("several routers count each other's load", "dynamo_router_peers")
shows("admission queue", "dynamo_router_queue_pending_requests", "dynamo_router_queue_queued_total")
shows("retries and hedges", "dynamo_router_retry_budget_used", "dynamo_router_hedges_total")
shows("prefetch", "dynamo_router_prefetches_total", "dynamo_router_prefetched_blocks_total")
shows(
    "metrics of process and pools",
    "process_open_fds", "dynamo_router_build_info", "dynamo_router_loop_lag_seconds_count",
    "dynamo_router_log_lines_lost_total", "dynamo_router_http_connections",
    "dynamo_component_router_requests_total",
)  # fmt: skip


@probe("workers found in a store", "nats")
async def finds_workers(served: Served) -> bool:
    _, told = await served.get(f"{served.seen}/workers")
    return len([row for row in told["workers"] if row["origin"] == "file"]) == 2


@probe("sessions", "nats")
async def keeps_sessions(served: Served) -> bool:
    await served.ask(**{"x-dynamo-session-id": "s"})
    return await served.grows("dynamo_router_sessions")


@probe("shares of tenants", "nats")
async def knows_tenants(served: Served) -> bool:
    await served.ask(**{"x-tenant-id": "t"})
    return await served.value("dynamo_router_tenants_recent") is not None


@probe("streams that outlive their worker", "failing")
async def moves_streams(served: Served) -> bool:
    """The worker of a stream crashes: the answer is whole, and from two workers."""
    asked = asyncio.create_task(served.ask(TOKENS_OF_A_STREAM, stream=True))

    async def busy() -> set[int]:
        _, told = await served.get(f"{served.seen}/workers")
        rows = told["workers"]
        streams = [r for r in rows if r["active_requests"] and not r["active_prefill_tokens"]]
        return {row["worker_id"] for row in streams}

    await until(busy)
    assert served.engines is not None
    (worker,) = await busy()
    (engine,) = [each for each in served.engines.engines if each.worker_id == worker]
    await engine.set_fault(Fault(crash=True))
    whole = await asked == TOKENS_OF_A_STREAM
    return whole and await served.grows("dynamo_router_migrations_total")


@probe("shedding by objectives", "shedding")
async def sheds(served: Served) -> bool:
    """The policy foresees, once it has seen answers, that none can meet its objective."""

    async def ask() -> None:
        with suppress(AssertionError, aio.AioRpcError):
            await served.ask(20, stream=True)

    async def refused() -> bool:
        await asyncio.gather(*(ask() for _ in range(4)))
        return bool(await served.value("dynamo_router_shed_requests_total"))

    await until(refused)
    return True


@probe("access log", "nats")
async def logs_requests(served: Served) -> bool:
    await served.ask()
    await until(lambda: served.logs("request ended"))
    return True


@probe("requests recorded", "nats")
async def records_requests(served: Served) -> bool:
    await served.ask()

    async def written() -> bool:
        return bool(await served.value("dynamo_router_record_lines_total"))

    await until(written)
    return True


@probe("tracing", "nats")
async def traces(served: Served) -> bool:
    spans = served.spans
    assert spans is not None
    await served.ask()
    await until(lambda: {span.name for span in spans} >= {"decide", "attempt"})
    return True


@probe("dashboard", "nats")
async def has_a_dashboard(served: Served) -> bool:
    """Of several processes it shows the first one."""
    page, _ = await served.get(f"{served.seen}/dashboard")

    async def shown() -> bool:
        # A connection that stays would take each request to the same process.
        await served.ask(**({"connection": "close"} if served.openai else {}))
        return bool((await served.get(f"{served.seen}/dashboard/state"))[1]["requests"])

    await until(shown)
    _, told = await served.get(f"{served.seen}/dashboard/state")
    _, caches = await served.get(f"{served.seen}/dashboard/caches")
    return page == 200 and bool(told["requests"]) and told["health"]["ready"] and bool(caches)


@probe("settings read again", "nats")
async def reloads(served: Served) -> bool:
    served.file.write_text("max_attempts = 7\n")
    status, told = await served.call("POST", f"{served.seen}/reload")
    return status == 200 and told["changed"]["max_attempts"]["new"] == 7


@probe("bounds on bodies and connections", "nats")
async def bounds_bodies(served: Served) -> bool:
    path = "/v1/completions" if served.openai else "/overlaps"
    url = f"{served.openai or served.seen}{path}"
    status, _ = await served.call("POST", url, data=b" " * 20_000)
    hit = await served.value("dynamo_router_limits_hit_total")
    return status == 413 and bool(hit)


@probe("limits on callers", "limited")
async def limits_callers(served: Served) -> bool:
    """No request has room: each is refused, and counted."""
    try:
        await served.ask()
    except (AssertionError, aio.AioRpcError) as error:
        refused = "max_request_bytes" in str(error)
    return refused and bool(await served.value("dynamo_router_limits_hit_total"))


@probe("workers listed, drained, weighted, removed", "nats")
async def changes_workers(served: Served) -> bool:
    _, told = await served.get(f"{served.seen}/workers")
    worker = f"{served.seen}/workers/{told['workers'][0]['worker_id']}"
    weighted = await served.call("PATCH", worker, json={"weight": 0.5})
    drained = await served.call("POST", f"{worker}/drain", json={"deadline_s": 5})
    removed = await served.call("DELETE", worker)
    missing = await served.call("DELETE", f"{served.seen}/workers/1")
    states = [weighted[1]["weight"], drained[1]["drained"], removed[1]["state"], missing[0]]
    return states == [0.5, True, "removed", 404]


@probe("workers added by a call", "nats")
async def adds_workers(served: Served) -> bool:
    url = {"url": "grpc://127.0.0.1:1"}
    return (await served.call("POST", f"{served.seen}/workers", json=url))[0] == 201


@probe("overlaps of a prompt, busy thresholds", "nats")
async def tells_overlaps(served: Served) -> bool:
    body = {"token_ids": PROMPT}
    asked = await served.call("POST", f"{served.seen}/overlaps", json=body)
    return [asked[0], (await served.get(f"{served.seen}/busy_threshold"))[0]] == [200, 200]


@probe("generation over gRPC", "nats")
async def generates(served: Served) -> bool:
    return bool(await Served.ask(served._replace(openai="")))


@probe("RouterService", "nats")
async def selects(served: Served) -> bool:
    stub = RouterServiceStub(served.channel)
    answer = await stub.SelectWorker(rpb.SelectWorkerRequest(token_ids=PROMPT))
    return bool(answer.worker.worker_id)


@probe("OpenAI's API", "nats")
async def answers_openai(served: Served) -> bool:
    await served.ask()
    _, told = await served.get(f"{served.openai}/v1/models")
    return [model["id"] for model in told["data"]] == ["tiny"]


@probe("endpoints picked for Envoy", "nats")
async def picks_endpoints(served: Served) -> bool:
    """Each worker of the store is behind a frontend at its host, which is given the worker."""
    head = HEAD | {":path": "/v1/completions"}
    prompt = {"model": "tiny", "prompt": PROMPT}
    async with aio.insecure_channel(served.picker) as channel:
        call = channel.stream_stream(PATH)()
        await call.write(request_headers(head))
        await call.write(body("request_body", json.dumps(prompt).encode(), ends=True))
        answered = Answered([await call.read()])
        call.cancel()
    _, page = await served.get(f"{served.seen}/workers")
    ids = {str(row["worker_id"]) for row in page["workers"]}
    sent_to = answered.set_headers
    return sent_to[DESTINATION] == "127.0.0.1:9100" and sent_to[INSTANCE_KEY] in ids


@probe("web pages of other origins", "nats")
async def lets_pages_ask(served: Served) -> bool:
    url, page = f"{served.openai}/v1/chat/completions", "https://chat.example"
    asked = {"Origin": page, "Access-Control-Request-Method": "POST"}
    async with served.session.options(url, headers=asked) as answer:
        return answer.headers.get("Access-Control-Allow-Origin") == page


@probe("reasoning and tool parsers", "nats")
async def reads_calls(served: Served) -> bool:
    """Without a parser, tools that the model may call are refused."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [tool],
        "tool_choice": "auto",
        "max_tokens": 2,
    }
    status, _ = await served.call("POST", f"{served.openai}/v1/chat/completions", json=body)
    return status == 200


@probe("embeddings", "nats")
async def asks_for_embeddings(served: Served) -> bool:
    """Mock engines make none: the answer is theirs."""
    if served.openai:
        body = {"model": "tiny", "input": "text"}
        _, told = await served.call("POST", f"{served.openai}/v1/embeddings", json=body)
        return bool(told["error"]["code"] == "no_embeddings")
    embed = served.channel.unary_unary(f"/{SERVICE}/Embed", None, None)
    request = pb.EmbedRequest(request_id="e")
    request.tokenized.input_token_ids.extend(PROMPT)
    with pytest.raises(aio.AioRpcError) as caught:
        await embed(request.SerializeToString())
    return bool(caught.value.code().name == "UNIMPLEMENTED")


@probe("TLS", "secured")
async def speaks_tls(served: Served) -> bool:
    return served.seen.startswith("https") and (await served.get(f"{served.seen}/live"))[0] == 200


@probe("tokens and roles", "secured")
async def asks_for_tokens(served: Served) -> bool:
    url = f"{served.openai}/v1/models" if served.openai else f"{served.seen}/workers"
    admin = {"authorization": f"Bearer {TOKEN}"}
    return [(await served.get(url))[0], (await served.get(url, headers=admin))[0]] == [401, 200]


@probe("an admin address of its own", "secured")
async def has_an_admin_address(served: Served) -> bool:
    admin = {"authorization": f"Bearer {TOKEN}"}
    found = re.search(r" admin (\S+) ", served.ready_line)
    assert found is not None
    refused, _ = await served.call("POST", f"{served.seen}/reload", headers=admin)
    # Each over a connection of its own: one of several processes has it.
    apart = {**admin, "connection": "close"}
    done = {
        (await served.call("POST", f"https://{found[1]}/reload", headers=apart))[0]
        for _ in range(10)
    }
    return [refused, done] == [403, {200}]


@probe("workers given by URL", "given")
async def has_given_workers(served: Served) -> bool:
    _, told = await served.get(f"{served.seen}/workers")
    return len(told["workers"]) == 3


@probe("mock engines as a child", "given")
async def has_mock_engines(served: Served) -> bool:
    _, told = await served.get(f"{served.seen}/workers")
    return len([row for row in told["workers"] if row["state"] == "ready"]) == 1


@probe("index in a file", "given")
async def keeps_an_index(served: Served) -> bool:
    return await served.grows("dynamo_router_index_snapshots_total")


@probe("several models, LoRA adapters", "models")
async def has_models(served: Served) -> bool:
    _, told = await served.get(f"{served.openai}/v1/models")
    return sorted(model["id"] for model in told["data"]) == ["other", "tiny"]


@probe("prefill and decode workers, by their cards", "models")
async def has_prefill_pools(served: Served) -> bool:

    async def meet() -> bool:
        _, told = await served.get(f"{served.seen}/pools")
        return any(pool["prefill_pools"] for pool in told["pools"])

    await until(meet)
    return True


@probe("lame duck, then drain", "nats")
async def turns_away(served: Served) -> bool:
    """The last of its profile: nobody is served after it."""
    served.turn_away()
    urls = {served.seen, served.openai or served.seen}
    health: set[int] = set()

    async def unready() -> bool:
        health.update([(await served.get(f"{url}/health"))[0] for url in urls])
        return 503 in health

    await until(unready)
    health = {(await served.get(f"{url}/health"))[0] for url in urls}
    await served.ask()  # who comes is still served
    return health == {503}


def rows_of(command: str, profile: str) -> list[Row]:
    """Those that the command has, in the order of their probes."""
    names = [name for name, (needed, _) in PROBES.items() if needed == profile]
    return [ROWS[name] for name in names if ROWS[name].cells[command] == "yes"]


def test_every_row_has_a_probe_and_every_hole_a_reason() -> None:
    assert sorted(ROWS) == sorted(PROBES)
    for row in ROWS.values():
        assert "yes" in row.cells.values()
        for cell in (*row.cells.values(), row.of_picker):
            assert cell == "yes" or cell.startswith("no: "), row


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_the_flags_of_its_features(command: str) -> None:
    flags = {flag for spec in options_of(COMMANDS[command]) for flag in spec.flags} | {"--config"}
    for row in ROWS.values():
        if row.cells[command] == "yes":
            assert set(row.flags) <= flags, row
    if command == FRONTEND:  # one configuration has the other two
        ours = {row.name for row in ROWS.values() if set(row.flags) <= flags}
        refused = {name for name in ours if ROWS[name].cells[command] != "yes"}
        assert not any(ROWS[name].flags for name in refused), refused


def test_epp_takes_the_flags_of_its_features_and_no_others() -> None:
    flags = {flag for spec in options_of(PickerConfig) for flag in spec.flags} | {"--config"}
    refused = {"--hedge-after-s", "--migration-limit"}
    without_effect = {"--router-prefetch"}  # it is on where nothing is set
    for row in ROWS.values():
        if row.of_picker == "yes":
            assert set(row.flags) - {"--worker"} <= flags, row
        elif row.flags:
            assert not set(row.flags) <= flags or set(row.flags) & (refused | without_effect), row


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("command", COMMANDS)
async def test_each_feature_is_there(
    command: str, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(command, profile)
    if not rows:
        assert profile in ("given", "models")
        return
    with backend_of("file", tmp_path / "store") as backend:
        for name, value in backend.environ.items():
            monkeypatch.setenv(name, value)
        async with PROFILES[profile](command, tmp_path, backend) as served:
            await until_ready(served)
            if profile not in ("limited", "secured", "given", "models", "failing", "shedding"):
                await served.ask()
            missing = [row.name for row in rows if not await PROBES[row.name][1](served)]
            assert missing == []
