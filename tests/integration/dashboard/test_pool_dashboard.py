"""The dashboard of a frontend of several models: which pool is looked at, and by whom."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.observability.browser import open_tab
from support.servers.discovered_fleet import Backend, backend_of, registered
from support.servers.model_serving import TINY, ModelClient, model_serving

Pools = dict[str, dict[str, Any]]


@pytest.fixture
async def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    with backend_of("file", tmp_path) as found:
        monkeypatch.setenv("DYN_FILE_KV", found.environ["DYN_FILE_KV"])
        yield found


@pytest.fixture
async def client(backend: Backend) -> AsyncIterator[ModelClient]:
    """Two pools of model a, one of model b."""
    other = replace(TINY, block_size=32)
    async with (
        registered(backend, 2, model_id="a", engine=TINY),
        registered(backend, 1, model_id="a", engine=other),
        registered(backend, 1, model_id="b", engine=TINY),
        model_serving(backend) as client,
    ):
        await client.until_shares(a=3, b=1)
        yield client


async def state(client: ModelClient, pool: str = "", path: str = "state") -> tuple[int, Any]:
    async with client.session.get(
        f"{client.url}/dashboard/{path}", params={"pool": pool} if pool else {}
    ) as answer:
        return answer.status, await answer.json()


async def pools_of(client: ModelClient) -> Pools:
    _, told = await state(client)
    return {f"{each['model']}{each['block_size']}": each for each in told["pools"]}


async def test_each_pool_tells_of_its_own(client: ModelClient) -> None:
    pools = await pools_of(client)
    assert {name: each["share"] for name, each in pools.items()} == {"a16": 2, "a32": 1, "b16": 1}
    assert {each["state"] for each in pools.values()} == {"serving"}
    worker = await client.worker_of("b")
    for name, each in pools.items():
        _, told = await state(client, each["key"])
        assert told["pool"] == each["key"] and told["block_size"] == each["block_size"]
        assert len(told["workers"]["rows"]) == each["share"]
        asked = {request["worker"] for request in told["requests"]}
        assert asked == ({str(worker)} if name == "b16" else set())
        assert told["may"]["ask"] and not told["may"]["change"]
        assert told["reads_text"] and told["health"]["ready"]
    _, told = await state(client)
    assert told["pool"] in {each["key"] for each in pools.values()}


async def test_what_is_asked_of_a_pool(client: ModelClient) -> None:
    key = (await pools_of(client))["b16"]["key"]
    await client.worker_of("b", prompt=list(range(40)))
    _, told = await state(client, key)
    (request,) = told["requests"]
    query = {"pool": key, "request_id": request["request_id"]}
    async with client.session.get(f"{client.url}/dashboard/receipt", params=query) as answer:
        assert answer.status == 200 and len((await answer.json())["candidates"]) == 1
    url = f"{client.url}/dashboard/what-if"
    async with client.session.post(url, params={"pool": key}, json={"text": "hello"}) as answer:
        assert answer.status == 200 and (await answer.json())["isl"] >= 1
    async with client.session.post(url, params={"pool": key}, json={"other": 1}) as answer:
        assert answer.status == 400
    status, _ = await state(client, key, "caches")
    assert status == 200
    status, told = await state(client, "no such pool", "caches")
    assert status == 404 and "no such pool" in told["error"]["message"]
    status, told = await state(client, "no such pool")
    assert status == 200 and told["pool"] is None and "workers" not in told


async def test_before_there_are_workers(backend: Backend) -> None:
    async with model_serving(backend) as client:
        status, told = await state(client)
        assert status == 200 and told["pools"] == [] and told["pool"] is None


async def test_the_page_and_its_files(client: ModelClient) -> None:
    async with client.session.get(f"{client.url}/dashboard") as answer:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        tag = {"if-none-match": answer.headers["etag"]}
    async with client.session.get(f"{client.url}/dashboard", headers=tag) as answer:
        assert answer.status == 304
    for name, status in (("main.js", 200), ("pools.js", 200), ("no.js", 404), ("../pages.py", 404)):
        async with client.session.get(f"{client.url}/dashboard/page/{name}") as answer:
            assert answer.status == status, name
    async with client.session.get(
        f"{client.url}/dashboard", headers={"origin": "http://evil.example"}
    ) as answer:
        assert answer.status == 403


async def test_data_needs_a_role(backend: Backend, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(
        '[[caller]]\nname = "c"\nroles = ["client"]\ntoken = "client-token-0123456789"\n'
        '[[caller]]\nname = "m"\nroles = ["metrics"]\ntoken = "metrics-token-012345678"\n'
    )
    tokens.chmod(0o600)
    async with model_serving(backend, auth_tokens=str(tokens)) as client:
        assert (await state(client))[0] == 401
        for token, path, status in (
            ("client-token-0123456789", "state", 403),
            ("metrics-token-012345678", "state", 200),
            ("metrics-token-012345678", "caches", 403),
        ):
            headers = {"authorization": f"Bearer {token}"}
            url = f"{client.url}/dashboard/{path}"
            async with client.session.get(url, headers=headers) as answer:
                assert answer.status == status, (token, path)


async def test_a_pool_is_chosen_in_the_page(client: ModelClient) -> None:
    pools = await pools_of(client)
    worker = await client.worker_of("b")
    async with open_tab() as tab:
        page = tab.page
        await page.goto(f"{client.url}/dashboard")
        await page.wait_for_selector("#pool-table tbody tr.chosen")
        assert await page.locator("#pool-table tbody tr").count() == 3
        await page.focus(f"button[data-pool='{pools['b16']['key']}']")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("tr.chosen:has-text('b')")
        await page.wait_for_selector(f"#worker-table tbody [title='worker {worker}']")
        shown = await page.inner_text("#worker-table")
        assert "b 0" in shown and "Drain" not in shown
        assert await page.input_value("#scope") == "b"
        assert await page.locator("#worker-table tbody tr").count() == 1
        await page.locator("#recent tbody button").first.click()
        await page.wait_for_selector("#receipt tr.chosen")
        await page.select_option("#scope", "")
        assert tab.errors == []


async def test_a_pool_without_a_worker_that_takes_requests_is_down(client: ModelClient) -> None:
    await client.worker_of("b")
    (pool,) = [pool for pool in client.server.models.pools if pool.model == "b"]
    assert pool.workers is not None and pool.state == "serving"
    async with open_tab() as tab:
        await tab.page.goto(f"{client.url}/dashboard")
        await tab.page.wait_for_selector("#verdict.good")
        for entry in pool.workers.router.registry.entries():
            await pool.workers.admin.drain(str(entry.worker_id))
        await tab.page.locator("#verdict.bad", has_text="Outage of b").wait_for()
        await tab.page.locator("#pool-table tr.ill .badge.bad", has_text="down").wait_for()
        assert tab.errors == []
    pools = await pools_of(client)
    assert {name: each["state"] for name, each in pools.items()}["b16"] == "down"
    _, told = await client.get("/pools")
    assert {each["model"]: each["state"] for each in told["pools"]} == {"a": "serving", "b": "down"}


async def test_the_overview_has_each_model_by_itself(client: ModelClient) -> None:
    await client.worker_of("b")
    assert (await client.complete("none"))[0] == 404
    for _ in client.server.parts.history.put(10**6):
        pass

    async def row(model: str) -> dict[str, int]:
        url = f"{client.url}/dashboard/overview"
        async with client.session.get(url, params={"model": model}) as answer:
            found = await answer.json()
        assert found["models"] == ["a", "b"]
        fields, *_, last = found["layout"]["fields"], *found["rows"]
        # A step may have ended meanwhile.
        summed = [sum(column) for column in zip(*(row[2:] for row in found["rows"]), strict=True)]
        ready = last[2 + fields.index("ready")]
        return {**dict(zip(fields, summed, strict=False)), "ready": ready}

    whole, a, b = await row(""), await row("a"), await row("b")
    assert (a["ok"], b["ok"], whole["ok"]) == (0, 1, 1)
    assert (a["http_ok"], b["http_ok"], whole["http_ok"], whole["http_4xx"]) == (0, 1, 1, 1)
    assert (a["ready"], b["ready"], whole["ready"]) == (3, 1, 4)
