"""Which Host and Origin a request may have, at each listener of each command, as clients in a
cluster and web pages send them."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.features.served_command import BOTH, FRONTEND, SERVE, TOKEN, started, until_ready
from support.free_port import free_port
from support.processes import command

SERVICE = "my-router.default.svc"
NAMES = [
    SERVICE,
    f"{SERVICE}.cluster.local:8080",
    "ROUTER.Example.COM:80",
    "ingress.example.",
    "[2001:db8::1]:8080",
    "10.1.2.3",
    "",
]
MODEL = b'{"model": "tiny", "prompt": "a", "max_tokens": 1}'
THRESHOLD = b'{"active_prefill_tokens_threshold": 9}'
SEEN = ("GET /workers", "GET /health", "GET /metrics", "GET /live", "GET /busy_threshold")
INFERENCE = ("POST /v1/completions", "POST /tokenize", "GET /v1/models", "GET /pools")
CHANGES = ("POST /busy_threshold", "POST /reload", "DELETE /workers/7", "POST /nonsense/of/ours")
BODIES = {
    "POST /v1/completions": MODEL,
    "POST /tokenize": b'{"model": "tiny", "prompt": "a"}',
    "POST /overlaps": b'{"token_ids": [1, 2]}',
    "POST /busy_threshold": THRESHOLD,
}


async def status_of(
    address: str, route: str, host: str | None, *headers: str, url: str = "", version: str = "1.1"
) -> tuple[int, bytes]:
    """Of a request whose head is written by hand."""
    method, path = route.split()
    body = BODIES.get(route, b"")
    lines = [f"{method} {url + path} HTTP/{version}", "connection: close", *headers]
    lines += [] if host is None else [f"Host: {host}"]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    name, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    try:
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        async with asyncio.timeout(60):
            answer = await reader.read()
    finally:
        writer.close()
    return int(answer.split()[1]), answer


def over_loopback(url: str) -> str:
    return url.rpartition("//")[2].replace("0.0.0.0", "127.0.0.1")


def from_outside(url: str) -> str | None:
    """The same listener by an address of this machine that is not loopback, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            found = str(probe.getsockname()[0])
        except OSError:
            return None
    return None if found.startswith("127.") else f"{found}:{url.rpartition(':')[2]}"


@asynccontextmanager
async def served(
    name: str, folder: Path, **given: Any
) -> AsyncIterator[dict[str, tuple[str, ...]]]:
    """The addresses of a command's listeners, with the routes that change nothing there."""
    if name != FRONTEND:
        given = {"mockers": 1, "model_id": "tiny", "router.use_kv_events": False, **given}
    else:
        given = {"discovery": "file", **given}
    async with started(name, folder, given) as found:
        seen = (*SEEN, "POST /overlaps")
        routes = {over_loopback(found.seen): seen}
        if name == FRONTEND:
            routes = {over_loopback(found.seen): (*SEEN[:4], "GET /pools", "GET /v1/models")}
        if name == BOTH:
            openai = over_loopback(found.openai)
            routes[openai] = INFERENCE
            await until_ready(found)
        yield routes


@pytest.mark.parametrize("name", [SERVE, BOTH, FRONTEND])
async def test_where_others_reach_the_listener_any_host_will_do(name: str, tmp_path: Path) -> None:
    """Also for who comes over loopback: a proxy beside the router."""
    async with served(name, tmp_path, host="0.0.0.0") as listeners:
        for address, routes in listeners.items():
            for at in filter(None, (address, from_outside(address))):
                for host in NAMES:
                    for route in routes:
                        status, answer = await status_of(at, route, host)
                        assert status in (200, 503), (at, route, host, answer)
                    for route in CHANGES:
                        status, answer = await status_of(at, route, host)
                        ours = host == "10.1.2.3" or host.startswith("[")
                        assert status in ((403, 404, 405, 415) if not ours else range(200, 500))
                        assert status != 200 or ours, (at, route, host, answer)


@pytest.mark.parametrize("name", [SERVE, BOTH, FRONTEND])
async def test_on_loopback_a_host_must_be_ours(name: str, tmp_path: Path) -> None:
    async with served(name, tmp_path, allowed_hosts=("router.example.com",)) as listeners:
        for address, routes in listeners.items():
            for host in NAMES:
                ours = host in ("ROUTER.Example.COM:80", "[2001:db8::1]:8080", "10.1.2.3")
                for route in routes:
                    status, answer = await status_of(address, route, host)
                    free = ours or route in ("GET /health", "GET /metrics", "GET /live")
                    assert (status == 403) is not free, (route, host, answer)


@pytest.mark.parametrize("name", [SERVE, BOTH, FRONTEND])
async def test_where_callers_show_tokens_any_host_will_do(name: str, tmp_path: Path) -> None:
    """A page that had its name point at us has none."""
    tokens = tmp_path / "tokens.toml"
    roles = '["client", "selector", "metrics"]'
    tokens.write_text(f'[[caller]]\nname = "a"\ntoken = "{TOKEN}"\nroles = {roles}\n')
    tokens.chmod(0o600)
    shown = f"authorization: Bearer {TOKEN}"
    async with served(name, tmp_path, auth_tokens=str(tokens)) as listeners:
        for address, routes in listeners.items():
            for route in routes:
                status, answer = await status_of(address, route, SERVICE, shown)
                assert status in (200, 503), (route, answer)
            for route in CHANGES[:3]:
                status, answer = await status_of(address, route, SERVICE)
                assert status in (401, 404), (route, answer)
                assert b"admin" not in answer.partition(b"\r\n\r\n")[2]


async def test_an_admin_listener_of_its_own_is_as_strict_as_loopback(tmp_path: Path) -> None:
    """Also where it has the number of the port that others reach."""
    given = {"host": "0.0.0.0", "admin_port": free_port()}
    async with served(SERVE, tmp_path, **given) as listeners:
        (open_one,) = listeners
        admin = f"127.0.0.1:{given['admin_port']}"
        assert (await status_of(open_one, "GET /workers", SERVICE))[0] == 200
        assert (await status_of(admin, "GET /workers", SERVICE))[0] == 403
        assert (await status_of(admin, "POST /busy_threshold", SERVICE))[0] == 403
        assert (await status_of(admin, "POST /busy_threshold", "localhost"))[0] == 200
        status, answer = await status_of(open_one, "POST /busy_threshold", "localhost")
        assert status == 403 and admin.encode() not in answer


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
async def test_heads_that_name_a_host_in_odd_ways(host: str, tmp_path: Path) -> None:
    is_open = host == "0.0.0.0"
    async with served(BOTH, tmp_path, host=host) as listeners:
        for address, routes in listeners.items():
            route = routes[0]
            cases: list[tuple[int, Any]] = [
                (400, status_of(address, route, None)),
                (400, status_of(address, route, SERVICE, f"Host: {SERVICE}")),
                (200 if is_open else 403, status_of(address, route, None, version="1.0")),
                (200 if is_open else 403, status_of(address, route, SERVICE, version="1.0")),
                (
                    200 if is_open else 403,
                    status_of(address, route, "localhost", url=f"http://{SERVICE}"),
                ),
                (200, status_of(address, route, SERVICE, url="http://localhost:80")),
                (200, status_of(address, route, "localhost", "Upgrade: h2c")),
                (
                    200 if is_open else 403,
                    status_of(
                        address, route, SERVICE, "Upgrade: h2c", "Connection: Upgrade, close"
                    ),
                ),
                (200 if is_open else 403, status_of(address, route, "x" * 5000)),
                (200 if is_open else 403, status_of(address, route, "[::1")),
            ]
            for expected, asked in cases:
                status, answer = await asked
                assert status == expected, (route, answer)


ORIGINS = [  # where others reach the listener, on loopback
    ("http://chat.example", "chat.example", 200, 403),
    ("http://chat.example", "CHAT.example:80", 200, 403),
    ("https://chat.example", "chat.example", 200, 403),  # TLS ends at an ingress
    ("https://chat.example", "chat.example:443", 200, 403),
    ("https://chat.example:8443", "chat.example", 403, 403),
    ("http://localhost:8080", "localhost:8080", 200, 200),
    ("https://localhost:8080", "localhost:8080", 200, 403),
    ("http://evil.example", "chat.example", 403, 403),
    ("http://evil.example", "localhost", 403, 403),
    ("null", "localhost", 403, 403),
    ("file://", "localhost", 403, 403),
]


async def test_a_page_may_ask_the_address_that_it_came_from(tmp_path: Path) -> None:
    for listened, column in (("0.0.0.0", 2), ("127.0.0.1", 3)):
        async with served(BOTH, tmp_path, host=listened) as listeners:
            for address, routes in listeners.items():
                for case in ORIGINS:
                    origin, host = f"Origin: {case[0]}", case[1]
                    status, answer = await status_of(address, routes[0], host, origin)
                    assert status == case[column], (listened, case, routes[0], answer)
                    status, _ = await status_of(address, "POST /busy_threshold", host, origin)
                    assert status != 200 or case[0] == f"http://{host}", case


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--no-kv-events", "--mockers", "1", "--port", "0", "--http-port", "PORT"),
        ("serve", "--no-kv-events", "--port", "0", "--http-port", "PORT", "--fronts", "2"),
        ("frontend", "--discovery", "file", "--http-port", "PORT"),
        ("frontend", "--discovery", "file", "--http-port", "PORT", "--fronts", "2"),
    ],
)
async def test_a_process_behind_a_service_name_needs_no_flag(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    port = free_port()
    given = [word.replace("PORT", str(port)) for word in words]
    async with command(tmp_path, *given, "--host", "0.0.0.0") as process:
        await process.says("dynamo-router ready")
        address = f"127.0.0.1:{port}"
        for route in ("GET /workers", "GET /health", "GET /metrics", "GET /live"):
            for _ in range(4):  # several processes answer
                status, answer = await status_of(address, route, SERVICE)
                assert status in (200, 503), (route, answer)
        for _ in range(4):
            status, answer = await status_of(address, "POST /reload", SERVICE)
            assert status == 403 and b"127.0.0.1" not in answer, answer
