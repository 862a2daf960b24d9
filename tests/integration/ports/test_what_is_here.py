"""What both HTTP ports of a router say of themselves, and browsers from other origins."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.base.package_version import package_version

PAGE = "https://chat.example"
BODY = {"model": "tiny", "prompt": "a", "max_tokens": 2}
TOKENS = {role: role[0] * 20 for role in ("client", "metrics")}


def ports_of(served: Served) -> tuple[str, str]:
    """URLs of the frontend's and of the router's HTTP port."""
    return served.url, f"http://127.0.0.1:{served.server.http.port}"


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    file = tmp_path / "tokens.toml"
    text = '[[caller]]\nname = "{}"\ntoken = "{}"\nroles = ["{}"]\n'
    file.write_text("".join(text.format(role, token, role) for role, token in TOKENS.items()))
    file.chmod(0o600)
    return str(file)


async def test_both_ports_say_what_is_there(tokens: str) -> None:
    async with openai_serving(FakeEngine(), auth_tokens=tokens) as served:
        for url in ports_of(served):
            async with served.session.get(f"{url}/") as answer:
                told = await answer.json()
                assert answer.status == 200 and told["service"] == "dynamo-router"
                assert {"GET /metrics", "GET /version", "GET /ping"} <= set(told["routes"])
            accept = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
            async with served.session.get(url, headers=accept) as answer:
                text = await answer.text()
                assert answer.content_type == "text/html" and "'none'" in str(answer.headers)
                links = re.findall('href="([^"]+)"', text)
            assert "/metrics" in links and "/live" in links
            for path in links:
                headers = {"authorization": f"Bearer {TOKENS['metrics']}"}
                async with served.session.get(url + path, headers=headers) as answer:
                    assert answer.status in (200, 403), path
        front, admin = ports_of(served)
        async with served.session.get(f"{front}/") as answer:
            assert "POST /v1/chat/completions" in (await answer.json())["routes"]
        async with served.session.get(f"{admin}/") as answer:
            assert "POST /v1/chat/completions" not in (await answer.json())["routes"]


async def test_both_ports_have_one_page_of_metrics_by_the_same_rule(tokens: str) -> None:
    async with openai_serving(FakeEngine(), auth_tokens=tokens) as served:
        names: list[set[str]] = []
        for url in ports_of(served):
            for token, status in ((None, 401), (TOKENS["client"], 403), (TOKENS["metrics"], 200)):
                headers = {} if token is None else {"authorization": f"Bearer {token}"}
                async with served.session.get(f"{url}/metrics/", headers=headers) as answer:
                    assert answer.status == status
        for url in ports_of(served):
            headers = {"authorization": f"Bearer {TOKENS['metrics']}"}
            async with served.session.get(f"{url}/metrics", headers=headers) as answer:
                text = await answer.text()
            names.append(set(re.findall("^# TYPE ([a-z_]+)", text, re.M)))
        assert names[0] == names[1]
        assert "dynamo_component_router_requests_started_total" in names[0]


async def test_version_ping_and_head() -> None:
    async with openai_serving(FakeEngine()) as served:
        for url in ports_of(served):
            async with served.session.get(f"{url}/version") as answer:
                assert await answer.json() == {"version": package_version()}
            async with served.session.get(f"{url}/ping") as answer:
                assert answer.status == 200 and (await answer.json())["status"] == "ready"
            async with served.session.get(url) as answer:
                routes = (await answer.json())["routes"]
            gets = [name.partition(" ")[2] for name in routes if name.startswith("GET ")]
            for path in gets:
                path = path.replace("{id}", "tiny").replace("{file}", "main.js")
                heads = []
                for method in ("GET", "HEAD"):
                    async with served.session.request(method, url + path) as answer:
                        heads.append((answer.status, answer.content_type))
                        assert method == "GET" or not await answer.read()
                assert heads[0] == heads[1], path


async def test_ping_follows_health() -> None:
    async with openai_serving(FakeEngine()) as served:
        served.server.parts.turn_away()
        for url in ports_of(served):
            for path in ("/health", "/ping"):
                async with served.session.get(url + path) as answer:
                    assert answer.status == 503


async def ask(served: Served, method: str, path: str, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    more = {"json": BODY} if method == "POST" else {}
    async with served.session.request(method, served.url + path, headers=named, **more) as answer:
        await answer.read()
        return answer.status, answer.headers


async def test_a_page_of_another_origin_is_refused_by_default() -> None:
    async with openai_serving(FakeEngine()) as served:
        for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models")):
            status, headers = await ask(served, method, path, Origin=PAGE)
            assert status == 403 and "access-control-allow-origin" not in headers
        asked = {"Origin": PAGE, "Access_Control_Request_Method": "POST"}
        status, headers = await ask(served, "OPTIONS", "/v1/completions", **asked)
        assert status == 405 and "access-control-allow-origin" not in headers


async def test_a_page_of_an_allowed_origin_has_requests_answered(tokens: str) -> None:
    async with openai_serving(FakeEngine(), allowed_origins=(PAGE,), auth_tokens=tokens) as served:
        asked = {
            "Origin": PAGE,
            "Access_Control_Request_Method": "POST",
            "Access_Control_Request_Headers": "authorization,content-type",
        }
        status, headers = await ask(served, "OPTIONS", "/v1/completions", **asked)
        assert status == 200 and headers["access-control-allow-origin"] == PAGE
        assert headers["access-control-allow-headers"] == "authorization,content-type"
        token = f"Bearer {TOKENS['client']}"
        for given, expected in ((token, 200), ("Bearer nobody-1234567890123", 401)):
            status, headers = await ask(
                served, "POST", "/v1/completions", Origin=PAGE, Authorization=given
            )
            assert status == expected  # and an error is read by the page, too
            assert headers["access-control-allow-origin"] == PAGE and headers["vary"] == "Origin"
            assert "access-control-allow-credentials" not in headers
        evil = {**asked, "Origin": "https://evil.example"}
        status, headers = await ask(served, "OPTIONS", "/v1/completions", **evil)
        assert status == 405 and "access-control-allow-origin" not in headers
        status, _ = await ask(
            served, "POST", "/v1/completions", Origin=evil["Origin"], Authorization=token
        )
        assert status == 403
        asked["Access_Control_Request_Method"] = "GET"
        for path in ("/pools", "/metrics", "/nowhere"):
            status, headers = await ask(served, "OPTIONS", path, **asked)
            assert status in (404, 405) and "access-control-allow-origin" not in headers


async def test_a_stream_is_read_by_an_allowed_page() -> None:
    async with openai_serving(FakeEngine(), allowed_origins=("*",)) as served:
        body = {**BODY, "stream": True}
        url = f"{served.url}/v1/completions"
        async with served.session.post(url, json=body, headers={"Origin": PAGE}) as answer:
            assert answer.status == 200
            assert answer.headers["access-control-allow-origin"] == "*"
            assert (await answer.text()).endswith("data: [DONE]\n\n")


async def test_a_packed_body_is_answered_and_a_bomb_refused() -> None:
    async with openai_serving(FakeEngine()) as served:
        for path, more in (("/v1/completions", BODY), ("/tokenize", {"prompt": "a" * 300_000})):
            data = gzip.compress(json.dumps(more).encode())
            packed = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
            status, told = await served.post(path, data, headers=packed)
            assert status == 200 and (told.get("choices") or told["count"])
        members = [gzip.compress(part) for part in (json.dumps(BODY)[:9].encode(), b"",
                                                    json.dumps(BODY)[9:].encode())]  # fmt: skip
        assert (await served.post("/v1/completions", b"".join(members), headers=packed))[0] == 200
        bomb = gzip.compress(bytes(64 << 20))
        status, told = await served.post("/v1/completions", bomb, headers=packed)
        assert status == 413 and "longer than" in told["error"]["message"]
        status, told = await served.post("/v1/completions", b"{}", headers=packed)
        assert status == 400
        packed["Content-Encoding"] = "br"
        status, told = await served.post("/v1/completions", b"{}", headers=packed)
        assert status == 415 and told["error"]["type"] == "invalid_request_error"
        assert served.server.parts.calls.bytes.used == 0
