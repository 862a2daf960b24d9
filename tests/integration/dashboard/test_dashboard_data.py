"""The dashboard's routes over real sockets: the page, what it is told, receipts, what-if."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from support.calls import messages_of
from support.fake_engine import FakeEngine, fail, prompt
from support.polling import until
from support.serving import BLOCK, Ports, serving

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.server.access import Role
from dynamo_router.server.dashboard.pages import PAGE
from dynamo_router.server.loop_share import TimeShare
from dynamo_router.workers.trtllm_proto import SERVICE


@pytest.fixture
async def ports() -> AsyncIterator[Ports]:
    async with serving(FakeEngine(worker_id=7), FakeEngine(worker_id=2**63)) as ports:
        yield ports


async def state(ports: Ports, **known: Any) -> dict[str, Any]:
    status, told = await ports.http("GET", "/dashboard/state", params=known)
    assert status == 200
    return dict(told)


async def test_the_page_needs_nothing_from_elsewhere(ports: Ports) -> None:
    session = ports._session
    url = f"http://{ports.server.http_address}"
    async with session.get(f"{url}/dashboard") as answer:
        page = await answer.text()
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    links = re.findall(r'(?:src|href)="(/dashboard/[^"]+)"', page)
    files = [path.name for path in PAGE.iterdir()]
    # All modules are named there: the browser need not read one to learn of the next.
    assert sorted(links) == sorted(f"/dashboard/page/{f}" for f in files if f != "index.html")
    assert "style=" not in page and not re.search(r"\son\w+=", page)
    for link in {*links, *(f"/dashboard/page/{name}" for name in files)}:
        async with session.get(url + link) as answer:
            assert answer.status == 200, link
            assert answer.headers["Content-Security-Policy"] == policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            text, tag = await answer.text(), answer.headers["ETag"]
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), link
        assert "innerHTML" not in text
        async with session.get(url + link, headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
    async with session.get(f"{url}/dashboard/page/..%2froutes.py") as answer:
        assert answer.status == 404


async def test_what_happened_is_told_once(ports: Ports) -> None:
    first = await state(ports)
    assert {row["worker"] for row in first["workers"]["rows"]} == {"7", str(2**63)}
    assert first["requests"] == [] and first["health"]["ready"]
    assert first["may"] == {"ask": True, "change": True} and not first["reads_text"]
    known = {"process": first["process"], "workers": first["workers"]["version"]}
    await ports.answers(prompt("r1", 40))
    second = await state(ports, **known)
    (request,) = second["requests"]
    assert request["request_id"] == "r1" and request["status"] == "OK" and request["has_receipt"]
    assert request["prompt_tokens"] == 40 and request["request_blocks"] == 3
    assert 0 <= request["ttft_s"] <= request["ended"] - request["arrived"]
    third = await state(ports, **known, requests=second["last_request"])
    assert third["requests"] == [] and third["missed_requests"] == 0
    # A page that knew another process begins anew.
    again = await state(ports, process="other", requests=1000, workers=1000)
    assert len(again["requests"]) == 1 and again["workers"]["all"]


async def test_a_policy_that_is_only_compared_is_named_with_its_figures(ports: Ports) -> None:
    assert (await state(ports))["shadow"] is None
    assert not [name for name in await ports.metrics() if "shadow_info" in name]
    plain = KvRouterConfig(block_size=BLOCK, use_kv_events=False, seed=1)
    compared = replace(plain, shadow_policy="round-robin")
    engines = FakeEngine(worker_id=1), FakeEngine(worker_id=2)
    async with serving(*engines, router=compared) as ports:
        for n in range(4):
            await ports.answers(prompt(f"r{n}", 40))
        shadow = (await state(ports))["shadow"]
        assert shadow["policy"] == "round-robin" and shadow["failed"] == 0
        assert shadow["same"] + shadow["other"] == 4 and shadow["other"] > 0
        metrics = await ports.metrics()
        assert metrics['dynamo_router_shadow_info{policy="round-robin"}'] == 1
        name = "dynamo_router_shadow_decisions_total"
        assert shadow["other"] == metrics[f'{name}{{outcome="other"}}']
        name = "dynamo_router_shadow_ttft_seconds_total"
        assert shadow["sooner_s"] == metrics[f'{name}{{direction="sooner"}}']
        assert shadow["later_s"] == metrics[f'{name}{{direction="later"}}']


async def test_bounds_are_what_the_best_of_the_workers_held() -> None:
    async with serving(FakeEngine(worker_id=1), FakeEngine(worker_id=2)) as ports:
        await ports.answers(prompt("cold", 5 * BLOCK))
        await ports.answers(prompt("warm", 5 * BLOCK + 3))
        other = 3 - int((await state(ports))["requests"][1]["worker"])
        pinned = ("x-dynamo-worker-instance-id", str(other))
        call = ports.channel.unary_stream(f"/{SERVICE}/Generate", None, None)
        await messages_of(call(prompt("else", 5 * BLOCK).SerializeToString(), metadata=(pinned,)))
        cold, warm, elsewhere = (await state(ports))["requests"]
    assert cold["bound"]["held_blocks"] == 0 and warm["bound"]["held_blocks"] == 5
    # It was sent where nothing was, and the other worker had all of it.
    assert elsewhere["overlap_blocks"] == 0 and elsewhere["bound"]["held_blocks"] == 5
    # Each by what was learnt up to then of engines on a machine that may be busy: not compared.
    assert cold["bound"]["ttft_s"] > 0 and warm["bound"]["ttft_s"] > 0


async def test_a_receipt_is_of_the_moment_before_the_booking(ports: Ports) -> None:
    await ports.answers(prompt("r/1", 40))
    status, told = await ports.http("GET", "/dashboard/receipt", params={"request_id": "r/1"})
    assert status == 200 and told["isl"] == 40 and told["candidate_count"] == 2
    rows = {row["worker"]: row for row in told["candidates"]}
    assert rows.keys() == {"7", str(2**63)}
    assert all(row["active_requests"] == 0 and row["eligible"] for row in rows.values())
    (request,) = (await state(ports))["requests"]
    assert request["worker"] in told["cheapest"]
    again = await ports.http("GET", "/dashboard/receipt", params={"request_id": "r/1"})
    assert again == (200, told)
    status, told = await ports.http("GET", "/dashboard/receipt", params={"request_id": "nobody's"})
    assert status == 404 and "no receipt" in told["error"]


async def test_what_if_books_nothing_and_says_what_is_wrong(ports: Ports) -> None:
    path = "/dashboard/what-if"
    status, told = await ports.http("POST", path, json={"token_ids": list(range(40))})
    assert status == 200 and told["isl"] == 40 and len(told["candidates"]) == 2
    assert (await state(ports))["requests"] == []
    assert all(view.active_requests == 0 for view in ports.server.router.workers())
    for body, words in (
        (b"{", "bad body"),
        (b'{"token_ids": [-1]}', "token_ids"),
        (b"{}", "empty"),
        (b'{"text": "hello"}', "no tokenizer"),
        (b'{"nonsense": 1}', "nonsense"),
    ):
        status, told = await ports.http("POST", path, data=body)
        assert status == 400 and words in told["error"], (body, told)


async def test_a_text_is_asked_about_where_there_is_a_tokenizer(ports: Ports) -> None:
    async def tokenize(text: str) -> list[int]:
        return [ord(each) for each in text]

    ports.server.dashboard.tokenize = tokenize
    status, told = await ports.http("POST", "/dashboard/what-if", json={"text": "hello"})
    assert status == 200 and told["isl"] == 5
    assert (await state(ports))["reads_text"]


async def test_failures_are_incidents() -> None:
    broken = FakeEngine(fail(grpc.StatusCode.INTERNAL, "<b>it broke</b>"), worker_id=7)
    async with serving(broken) as ports:
        with pytest.raises(grpc.RpcError):
            await ports.answers(prompt("r1"))
        await until(
            lambda: any(i.kind == "worker" for i in ports.server.dashboard.incidents.since(0))
        )
        told = await state(ports)
        found = {each["kind"]: each for each in told["incidents"]}
        assert found["attempt"]["worker"] == "7" and "it broke" in found["attempt"]["text"]
        assert "internal" in found["request"]["text"] and "ready" in found["worker"]["text"]
        assert told["requests"][-1]["status"] == "INTERNAL"


async def test_a_policy_that_cannot_explain_stands_in_no_requests_way(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **more: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(ports.server.router, "explain_steps", refuse)
    assert len(await ports.answers(prompt("r1"))) == 3
    (request,) = (await state(ports))["requests"]
    assert request["status"] == "OK" and not request["has_receipt"]


async def test_caches_are_shown(ports: Ports) -> None:
    status, told = await ports.http("GET", "/dashboard/caches")
    assert status == 200 and json.dumps(told) and told["branches"] == []
    # Without events the cache is predicted from routing.
    ports.server.dashboard._caches._share = TimeShare(1.0)  # it may look again
    await ports.answers(prompt("r1", 40))
    _, told = await ports.http("GET", "/dashboard/caches")
    (branch,) = told["branches"]
    assert branch["blocks"] == 2 and branch["holders"] == 1 and branch["parent"] is None


async def test_metrics_alone_may_look_but_not_ask(tmp_path: Any) -> None:
    tokens = tmp_path / "tokens.toml"
    token = "m" * 20
    tokens.write_text(f'[[caller]]\nname = "scraper"\ntoken = "{token}"\nroles = ["metrics"]\n')
    tokens.chmod(0o600)
    async with serving(FakeEngine(), auth_tokens=str(tokens)) as ports:
        headers = {"authorization": f"Bearer {token}"}
        status, told = await ports.http("GET", "/dashboard/state", headers=headers)
        assert status == 200 and told["may"] == {"ask": False, "change": False}
        status, told = await ports.http("GET", "/dashboard/caches", headers=headers)
        assert status == 403 and Role.ADMIN in told["error"]
        assert (await ports.http("GET", "/dashboard/state"))[0] == 401
        assert (await ports.http("GET", "/dashboard"))[0] == 200


def end_step(ports: Ports, step: int) -> None:
    """As if the 5 s were over."""
    for _ in ports.server.parts.history.put(step):
        pass


async def test_the_overview_has_history_errors_version_and_age(ports: Ports) -> None:
    await ports.answers(prompt("r1", 40))
    end_step(ports, 10**6)
    assert (await ports.http("GET", "/dashboard/nothing"))[0] == 404
    status, found = await ports.http("GET", "/dashboard/overview")
    assert status == 200 and found["uptime_s"] > 0 and found["version"]
    assert (found["processes"], found["missing"]) == (1, 0)
    layout, (step, _, *last) = found["layout"], found["rows"][-1]
    assert step == 10**6 and len(last) == len(layout["fields"]) + 2 * layout["buckets"]
    now = dict(zip(layout["fields"], last, strict=False))
    # A step may have ended meanwhile.
    summed = [sum(column) for column in zip(*(row[2:] for row in found["rows"]), strict=True)]
    row = dict(zip(layout["fields"], summed, strict=False))
    assert (row["ok"], row["prompt_tokens"], now["ready"], now["workers"]) == (1, 40, 2, 2)
    assert sum(summed[len(layout["fields"]) :][: layout["buckets"]]) == 1  # its TTFT
    (error,) = found["http_errors"]
    assert (error["status"], error["route"], error["answers"]) == (404, "unknown", 1)
    status, found = await ports.http("GET", "/dashboard/overview", params={"since": step})
    assert status == 200 and found["rows"] == []
    for since in ("-5", "x", "9" * 40, "NaN", "1e3", "\u0663"):
        status, found = await ports.http("GET", "/dashboard/overview", params={"since": since})
        assert status == 200 and found["rows"][-1][0] == step
    asked = {"model": "<none>"}
    status, found = await ports.http("GET", "/dashboard/overview", params=asked)
    assert status == 200 and not any(found["rows"][-1][2:])


async def test_the_overview_needs_a_role(tmp_path: Any) -> None:
    tokens = tmp_path / "tokens.toml"
    token = "c" * 20
    tokens.write_text(f'[[caller]]\nname = "c"\ntoken = "{token}"\nroles = ["client"]\n')
    tokens.chmod(0o600)
    async with serving(FakeEngine(), auth_tokens=str(tokens)) as ports:
        headers = {"authorization": f"Bearer {token}"}
        assert (await ports.http("GET", "/dashboard/overview", headers=headers))[0] == 403
        assert (await ports.http("GET", "/dashboard/overview"))[0] == 401


async def test_the_state_says_since_when_no_worker_is_there() -> None:
    engine = FakeEngine(worker_id=7)
    async with serving(engine) as ports:
        first = await state(ports)
        assert first["down_since"] is None and first["last_error"] is None
        await engine.stop()

        async def is_down() -> bool:
            return (await state(ports))["down_since"] is not None

        await until(is_down)
        found = await state(ports)
        assert first["now"] < found["down_since"] <= found["now"]
        assert found["last_error"]["worker"] == "7" and "unhealthy" in found["last_error"]["text"]
