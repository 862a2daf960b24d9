"""Who may what, on every method and route of a running router; ids that callers share."""

from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc import aio
from structlog.testing import capture_logs
from support.fake_engine import FakeEngine, prompt, stall
from support.free_port import free_port
from support.polling import until
from support.processes import command
from support.serving import BLOCK, Ports, serving

from dynamo_router.router.proto import router_pb2 as rpb
from dynamo_router.server.access.roles import FRONTEND_RULES, RULES, Role
from dynamo_router.server.observability import ObservabilityConfig
from dynamo_router.workers.trtllm_proto import SERVICE, pb

TOKENS = {role: f"{role}-token-0123456789" for role in Role}
PROMPT = list(range(1, 1 + 4 * BLOCK))
Headers = tuple[tuple[str, str], ...]


def bearer(token: str) -> Headers:
    return (("authorization", f"Bearer {token}"),)


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    """A file with a caller of each role, and two ordinary ones."""
    rows = [(str(role), token, [str(role)]) for role, token in TOKENS.items()]
    rows += [(name, f"{name}-0123456789abcdef", ["client", "selector"]) for name in ("ann", "bob")]
    path = tmp_path / "tokens.toml"
    entries = (
        f'[[caller]]\nname = "{name}"\ntoken = "{token}"\nroles = {roles}\n'
        for name, token, roles in rows
    )
    path.write_text("".join(entries))
    path.chmod(0o600)
    return str(path)


ANN, BOB = bearer("ann-0123456789abcdef"), bearer("bob-0123456789abcdef")


async def code_of(ports: Ports, method: str, metadata: Headers) -> tuple[grpc.StatusCode, str]:
    """How a call with an empty request ends, or that it began to answer."""
    call = ports.channel.unary_stream(method, None, None)(b"", metadata=metadata)
    try:
        if await call.read() is aio.EOF:
            return await call.code(), await call.details()
    except aio.AioRpcError as error:
        return error.code(), error.details() or ""
    call.cancel()
    return grpc.StatusCode.OK, ""


OF_PICKERS = ("/envoy.service.ext_proc.v3.ExternalProcessor/Process",)
"""Methods that `epp` has and no other listener."""


async def test_every_rpc_asks_for_its_role(tokens: str) -> None:
    async with serving(FakeEngine(), auth_tokens=tokens) as ports:
        for method, rule in RULES.items():
            if not method.startswith("/") or method in OF_PICKERS:
                continue
            for metadata, said in (
                ((), "a bearer token is needed"),
                (bearer("nobody-0123456789"), "the bearer token is not known"),
                ((("authorization", "Basic YTpi"),), "not of the form: Bearer TOKEN"),
            ):
                code, text = await code_of(ports, method, metadata)
                refused = code is grpc.StatusCode.UNAUTHENTICATED and said in text
                assert refused is not rule.open, (method, code, text)
            code, text = await code_of(ports, method, ANN + BOB)
            assert code is grpc.StatusCode.INVALID_ARGUMENT, (method, code, text)
            assert text == "a call has authorization once at most"
            for role, token in TOKENS.items():
                code, text = await code_of(ports, method, bearer(token))
                refused = code is grpc.StatusCode.PERMISSION_DENIED
                assert refused is not (rule.open or role in rule.roles), (method, role, code, text)
                assert code is not grpc.StatusCode.UNAUTHENTICATED
                assert not refused or f"{role} may not do this: it needs the role" in text
        code, _ = await code_of(ports, f"/{SERVICE}/Nonsense", ())
        assert code is grpc.StatusCode.UNIMPLEMENTED


BODIES = {
    "POST /overlaps": {"json": {"token_ids": PROMPT}},
    "POST /dashboard/what-if": {"json": {"token_ids": PROMPT}},
    "POST /busy_threshold": {"json": {"active_prefill_tokens_threshold": 9}},
    "PATCH /workers/{id}": {"json": {"weight": 1}},
}


async def test_every_route_asks_for_its_role(tokens: str, tmp_path: Path) -> None:
    seen = ObservabilityConfig(record=str(tmp_path / "requests.jsonl"))  # else it has no /record
    async with serving(FakeEngine(), auth_tokens=tokens, observability=seen) as ports:
        for call, rule in RULES.items():
            if call.startswith("/") or call in FRONTEND_RULES:
                continue
            method, path = call.split()
            body = BODIES.get(call, {"json": {}} if method in ("POST", "PATCH") else {})
            path = path.replace("{id}", "7")  # which there is not
            path = path.replace("{file}", "main.js")
            status, answer = await ports.http(method, path, **body)
            assert (status, rule.open) in ((200, True), (401, False)), (call, answer)
            for role, token in TOKENS.items():
                status, answer = await ports.http(method, path, headers=dict(bearer(token)), **body)
                allowed = rule.open or role in rule.roles
                missing = ("/workers/7", "/workers/7/drain", "/dashboard/receipt")
                done = 404 if path in missing else 200
                done = {"POST /workers": 400, "POST /reload": 409}.get(call, done)
                assert status == (done if allowed else 403), (call, role, answer)
                assert allowed or "it needs the role" in answer["error"]
        for header in ("Basic abc", "Bearer", "Bearer nobody-0123456789"):
            status, _ = await ports.http("GET", "/workers", headers={"authorization": header})
            assert status == 401
        metrics = await ports.http("GET", "/metrics", headers=dict(bearer(TOKENS[Role.METRICS])))
        assert 'dynamo_router_access_refused_total{reason="role"}' in metrics[1]


async def test_a_token_file_that_changed_counts_at_once(tokens: str) -> None:
    async with serving(FakeEngine(), auth_tokens=tokens) as ports:
        new = bearer("late-0123456789abcdef")
        assert (await code_of(ports, f"/{SERVICE}/GetModelInfo", new))[0].name == "UNAUTHENTICATED"
        with Path(tokens).open("a") as file:
            file.write('[[caller]]\nname = "late"\ntoken = "late-0123456789abcdef"\n')
            file.write('roles = ["client"]\n')

        async def known() -> bool:
            return (await code_of(ports, f"/{SERVICE}/GetModelInfo", new))[0].name == "OK"

        await until(known, 60.0)


# Ids


async def begin(ports: Ports, request_id: str, metadata: Headers) -> Any:
    """A streamed request that has its first token."""
    call = ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
    running = call(prompt(request_id, 2 * BLOCK).SerializeToString(), metadata=metadata)
    first = pb.GenerateResponse.FromString(await running.read())
    assert first.request_id == request_id
    return running


async def rest_of(call: Any) -> list[Any]:
    rest = []
    while (message := await call.read()) is not aio.EOF:
        rest.append(pb.GenerateResponse.FromString(message))
    return rest


async def loads(ports: Ports) -> int:
    return sum(view.active_requests for view in ports.server.router.workers())


async def test_two_callers_may_use_one_id_and_end_only_their_own(tokens: str) -> None:
    engine = FakeEngine(stall)
    async with serving(engine, auth_tokens=tokens) as ports:
        anns, bobs = await begin(ports, "x", ANN), await begin(ports, "x", BOB)
        assert [request.request_id for request in engine.requests] == ["ann/x", "bob/x"]
        with pytest.raises(aio.AioRpcError, match="request id 'x' is in use"):
            await rest_of(await begin(ports, "x", ANN))
        abort = ports.channel.unary_unary(f"/{SERVICE}/Abort", None, pb.AbortResponse.FromString)
        body = pb.AbortRequest(request_id="ann/x").SerializeToString()
        assert not (await abort(body, metadata=BOB)).success
        body = pb.AbortRequest(request_id="x").SerializeToString()
        assert (await abort(body, metadata=BOB)).success
        assert engine.aborted == ["bob/x"]
        assert await loads(ports) == 2
        engine.go.set()
        for call in (anns, bobs):
            (last,) = await rest_of(call)
            assert last.request_id == "x" and last.HasField("complete")
        await until(lambda: ports.server.dispatcher.in_flight == 0)


async def test_a_request_without_an_id_is_its_callers_too(tokens: str) -> None:
    engine = FakeEngine(stall)
    async with serving(engine, auth_tokens=tokens) as ports:
        call = ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        running = call(prompt("").SerializeToString(), metadata=ANN)
        given = pb.GenerateResponse.FromString(await running.read()).request_id
        assert engine.requests[0].request_id == f"ann/{given}"
        abort = ports.channel.unary_unary(f"/{SERVICE}/Abort", None, pb.AbortResponse.FromString)
        body = pb.AbortRequest(request_id=given).SerializeToString()
        assert not (await abort(body, metadata=BOB)).success
        assert (await abort(body, metadata=ANN)).success
        running.cancel()


async def test_bookings_are_freed_by_whoever_made_them(tokens: str) -> None:
    async with serving(FakeEngine(), auth_tokens=tokens) as ports:
        select, mine = ports.select, rpb.BookedRequest(request_id="x")
        request = rpb.SelectWorkerRequest(token_ids=PROMPT, request_id="x")
        for caller in (ANN, BOB):
            assert (await select.SelectWorker(request, metadata=caller)).booked
            with pytest.raises(aio.AioRpcError, match="request id 'x' is in use"):
                await select.SelectWorker(request, metadata=caller)
        assert (await select.Free(mine, metadata=BOB)).known
        assert not (await select.Free(mine, metadata=BOB)).known
        assert not (await select.MarkPrefillComplete(mine, metadata=BOB)).known
        assert await loads(ports) == 1
        assert (await select.MarkPrefillComplete(mine, metadata=ANN)).known
        assert (await select.Free(mine, metadata=ANN)).known


async def test_a_selection_and_a_request_of_one_id_have_nothing_to_do_with_each_other() -> None:
    engine = FakeEngine(stall)
    async with serving(engine) as ports:
        running = await begin(ports, "x", ())
        assert engine.requests[0].request_id == "x"  # nobody is named, so ids go on as they are
        mine = rpb.BookedRequest(request_id="x")
        assert not (await ports.select.Free(mine)).known
        request = rpb.SelectWorkerRequest(token_ids=PROMPT, request_id="x")
        assert (await ports.select.SelectWorker(request)).booked
        assert await loads(ports) == 2
        assert (await ports.select.Free(mine)).known
        assert await loads(ports) == 1
        assert (await ports.select.SelectWorker(request)).booked
        engine.go.set()
        await rest_of(running)
        assert await loads(ports) == 1
        assert (await ports.select.Free(mine)).known


async def test_an_id_that_could_be_a_selections_is_refused() -> None:
    async with serving(FakeEngine()) as ports:
        with pytest.raises(aio.AioRpcError, match="begins with a control character") as caught:
            await ports.answers(prompt("\x1fselect//x"))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        abort = ports.channel.unary_unary(f"/{SERVICE}/Abort", None, pb.AbortResponse.FromString)
        body = pb.AbortRequest(request_id="\x1fselect//x").SerializeToString()
        assert not (await abort(body)).success


# The admin listener

THRESHOLD = b'{"active_prefill_tokens_threshold": 9}'
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({}, 415, "the Content-Type must be application/json"),
        ({"Content-Type": "text/plain"}, 415, "must be application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "must be application/json"),
        ({**JSON, "Origin": "http://evil.example"}, 403, "a web page of another origin"),
        ({**JSON, "Origin": "null"}, 403, "a web page of another origin"),
        ({**JSON, "Origin": "http://evil.example", "Host": "evil.example"}, 403, "see --allowed"),
        ({**JSON, "Host": "evil.example"}, 403, "the Host is no address or name of this router"),
        ({**JSON, "Host": "evil.example", "Origin": "null"}, 403, "a web page of another origin"),
        (JSON, 200, None),
        ({**JSON, "Host": "localhost:8081"}, 200, None),
        ({**JSON, "Host": "router.example"}, 200, None),
        ({"Content-Type": "application/json; charset=utf-8"}, 200, None),
    ],
)
async def test_a_web_page_cannot_change_a_router_on_loopback(
    headers: dict[str, str], status: int, said: str | None
) -> None:
    async with serving(allowed_hosts=("router.example",)) as ports:
        told = await ports.http(
            "POST",
            "/busy_threshold",
            data=THRESHOLD,
            headers=headers,
            skip_auto_headers=["Content-Type"],
        )
        assert told[0] == status, told
        changed = ports.server.router.limits.config.active_prefill_tokens_threshold
        assert changed == (9 if status == 200 else None)
        if said is not None:
            assert said in told[1]["error"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (None, 409),
        ("application/octet-stream", 409),
        ("application/x-www-form-urlencoded", 415),
        ("text/plain; charset=utf-8", 415),
        ("multipart/form-data", 415),
    ],
)
async def test_without_a_body_no_type_is_needed_but_a_forms_is_refused(
    kind: str | None, status: int
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    async with serving() as ports:
        told = await ports.http(
            "POST", "/reload", headers=headers, skip_auto_headers=["Content-Type"]
        )
        assert told[0] == status, told


async def test_a_web_page_cannot_read_a_router_on_loopback() -> None:
    async with serving() as ports:
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            for method, path in (("GET", "/workers"), ("POST", "/overlaps")):
                assert (await ports.http(method, path, headers=headers))[0] == 403
        named = {"Host": "router.svc.cluster.local"}
        for path, status in (("/live", 200), ("/health", 503), ("/metrics", 200)):
            assert (await ports.http("GET", path, headers=named))[0] == status
            assert (await ports.http("HEAD", path, headers=named))[0] == status


async def test_an_admin_listener_of_its_own_has_the_admin_routes_alone_to_itself() -> None:
    async with serving(admin_port=0) as ports:
        admin = ports.server.http.admin
        assert admin is not None and f" admin 127.0.0.1:{admin.port} " in ports.server.ready_line
        status, told = await ports.http("POST", "/busy_threshold", data=THRESHOLD, headers=JSON)
        assert status == 403
        assert "on the admin listener alone" in told["error"]
        assert str(admin.port) not in told["error"]
        url = f"http://127.0.0.1:{admin.port}/busy_threshold"
        async with ports._session.post(url, data=THRESHOLD, headers=JSON) as answer:
            assert answer.status == 200
        async with ports._session.get(f"http://127.0.0.1:{admin.port}/live") as answer:
            assert answer.status == 200
        assert (await ports.http("GET", "/busy_threshold"))[0] == 200


async def test_the_listener_for_clients_leaves_the_admin_port_to_the_other(tmp_path: Path) -> None:
    admin = free_port()
    words = ("serve", "--no-kv-events", "--port", "0", "--http-port", "0", "--http-frontend", "0")
    async with command(tmp_path, *words, "--admin-port", str(admin)) as router:
        line = await router.says("dynamo-router ready")
        assert line.count(f" admin 127.0.0.1:{admin}") == 1 == line.count(" admin ")
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{admin}/busy_threshold"
            async with session.post(url, data=THRESHOLD, headers=JSON) as answer:
                assert answer.status == 200


async def test_what_is_open_is_said_at_the_start(tmp_path: Path) -> None:
    words = ("serve", "--no-kv-events", "--port", "0", "--http-port", "0")
    async with command(tmp_path, *words, "--host", "0.0.0.0") as router:
        await router.says("dynamo-router ready")
        # The ready line, which has both addresses, may stand before or behind what the log says.
        assert "grpc 0.0.0.0:" in await router.says(
            "is open: any host that reaches it may generate"
        )
        assert "http 0.0.0.0:" in await router.says("is open: any host that reaches it may read")
        await router.says("--tls-cert")
        assert "admin 0.0.0.0" not in router.text  # on loopback, as ever
    async with command(tmp_path, *words) as router:
        await router.says("dynamo-router ready")
        assert "is open" not in router.text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--auth-tokens", "nowhere"), "auth_tokens: cannot read nowhere: No such file"),
        (("--admin-port", "70000"), "admin_port: must be in 0..65535"),
        (("--admin-host", "192.0.2.1", "--admin-port", "9"), "cannot listen on 192.0.2.1:9"),
        (("--tls-cert", "nowhere"), "tls.cert: needs tls.key"),
        (("--tls-cert", "no", "--tls-key", "no"), "tls.cert: cannot read no: No such file"),
        (("--worker-tls-ca", "nowhere"), "worker_tls.ca: cannot read nowhere: No such file"),
        (("--nats-creds", "nowhere"), "nats_auth.creds: needs nats, the server's address"),
        (("--worker", "grpc://u:S3cret@h:1"), "worker 'grpc://u:***@h:1' is not grpc://HOST:PORT"),
    ],
)
async def test_a_setting_that_cannot_be_had_is_one_line(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    more = ("serve", "--no-kv-events", "--port", "0", "--http-port", "0")
    async with command(tmp_path, *more, *words) as router:
        assert await router.ended() in (1, 2)
        assert said in router.text and "Traceback" not in router.text
        assert "S3cret" not in router.text


async def test_the_access_log_names_who_called_and_no_token(tokens: str) -> None:
    seen = ObservabilityConfig(access_log=True)
    with capture_logs() as logs:
        async with serving(FakeEngine(), auth_tokens=tokens, observability=seen) as ports:
            await rest_of(await begin(ports, "x", ANN))
            for shown in (BOB, (), bearer("nobody-0123456789")):
                await ports.http("GET", "/workers", headers=dict(shown))
    ended = [line for line in logs if line["event"] == "request ended"]
    assert [line.get("caller") for line in ended] == ["ann", "bob", None, None]
    assert "0123456789" not in str(logs)
