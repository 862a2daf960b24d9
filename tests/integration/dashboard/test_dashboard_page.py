"""The dashboard's page in a real browser."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.fake_engine import FakeEngine, fail, prompt
from support.observability.browser import Tab, open_tab
from support.polling import until
from support.servers.openai_serving import openai_serving
from support.serving import BLOCK, Ports, serving

from dynamo_router.base.errors import StatusCode
from dynamo_router.base.request_record import RequestRecord
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.workers.registry import WorkerState


@pytest.fixture
async def ports() -> AsyncIterator[Ports]:
    async with serving(FakeEngine(worker_id=7), FakeEngine(worker_id=2**63)) as ports:
        yield ports


async def visit(tab: Tab, ports: Ports) -> Any:
    await tab.page.goto(f"http://{ports.server.http_address}/dashboard")
    return tab.page


async def test_workers_requests_and_why(ports: Ports) -> None:
    for n in range(3):
        await ports.answers(prompt(f"r{n}", 40))
    async with open_tab() as tab:
        page = await visit(tab, ports)
        await page.locator("#recent tbody button").nth(2).wait_for()
        shown = await page.inner_text("#worker-table tbody")
        assert "worker 0" in shown and "worker 1" in shown and "ready" in shown
        assert await page.locator(f"#worker-table [title='worker {2**63}']").count() == 1
        # By keyboard alone: the newest request's button, then its receipt.
        await page.focus("#recent tbody button")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#receipt tr.chosen")
        told = await page.inner_text("#receipt")
        assert "Request r2" in told and "It went to worker" in told
        assert await page.locator("#receipt tbody tr").count() == 2
        # The tree is walked by arrows, and says where it is.
        await page.wait_for_selector("#icicle g[tabindex='0']")
        await page.focus("#icicle g[tabindex='0']")
        assert "held by" in await page.inner_text("#branch")
        assert await page.locator("#timeline rect[data-request]").count() >= 3
        url = f"http://{ports.server.http_address}/"
        assert tab.errors == [] and all(each.startswith(url) for each in tab.urls)


async def test_what_if_and_a_bad_prompt(ports: Ports) -> None:
    async with open_tab() as tab:
        page = await visit(tab, ports)
        await page.wait_for_selector("#worker-table tbody tr")
        assert not await page.is_visible("#prompt")
        await page.click("#what-if summary")
        await page.fill("#prompt", "1, 2 3 [4]")
        await page.click("#what-if button")
        await page.wait_for_selector("#receipt table")
        assert "4 tokens" in await page.inner_text("#receipt")
        await page.fill("#prompt", "many words")
        await page.click("#what-if button")
        await page.wait_for_selector("#receipt .bad")
        assert await page.is_disabled("input[value=text]")  # nobody has a tokenizer here
        assert tab.errors == []


async def test_a_line_says_what_the_shadow_policy_would_have_done(ports: Ports) -> None:
    await ports.answers(prompt("r1", 40))
    async with open_tab() as tab:
        page = await visit(tab, ports)
        await page.wait_for_selector("#recent tbody button")
        assert not await page.is_visible("#shadow")
    config = KvRouterConfig(block_size=BLOCK, use_kv_events=False, shadow_policy="round-robin")
    engines = FakeEngine(worker_id=1), FakeEngine(worker_id=2)
    async with serving(*engines, router=config) as ports, open_tab() as tab:
        for n in range(3):
            await ports.answers(prompt(f"r{n}", 40))
        page = await visit(tab, ports)
        await page.wait_for_selector("#recent tbody button")
        line = await page.inner_text("#shadow")
        found = re.search(r"policy round-robin .* for (\d+) requests, another for (\d+);", line)
        assert found is not None and int(found[1]) + int(found[2]) == 3, line
        assert "sooner" in line and "later" in line
        assert tab.errors == []


async def test_light_and_dark(ports: Ports) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    async with open_tab(color_scheme="dark") as tab:
        page = await visit(tab, ports)
        dark = await page.evaluate(back)
        await page.click("#theme")  # system, then light
        light = await page.evaluate(back)
        assert dark != light
        await page.reload()
        assert await page.evaluate(back) == light
        await page.click("#theme")
        assert await page.evaluate(back) == dark


async def test_everything_that_can_be_used_has_a_name(ports: Ports) -> None:
    await ports.answers(prompt("r1", 40))
    async with open_tab() as tab:
        page = await visit(tab, ports)
        await page.wait_for_selector("#recent tbody button")
        await page.wait_for_selector("#icicle g[role=treeitem]")
        nameless = await page.evaluate(
            """[...document.querySelectorAll(`button, input, textarea, [role=tree], [role=treeitem],
                [role=img], a`)].filter((each) => !(each.textContent.trim() || each.labels?.length
                || each.getAttribute('aria-label') || each.getAttribute('aria-labelledby')))
                .map((each) => each.outerHTML)"""
        )
        assert nameless == []
        untitled = await page.evaluate(
            "[...document.querySelectorAll('section')].filter((each) =>"
            " !document.getElementById(each.getAttribute('aria-labelledby'))).length"
        )
        assert untitled == 0
        assert await page.locator("table caption").count() == await page.locator("table").count()


async def test_what_engines_say_stays_text() -> None:
    words = "<img src=x onerror=alert(1)>"
    async with serving(FakeEngine(fail(grpc.StatusCode.INTERNAL, words), worker_id=7)) as ports:
        with pytest.raises(grpc.RpcError):
            await ports.answers(prompt("<b>r1</b>"))
        async with open_tab() as tab:
            page = await visit(tab, ports)
            await page.locator("#incident-list", has_text="onerror").wait_for()
            assert "<b>r1</b>" in await page.inner_text("#recent")
            assert await page.locator("main img, main b").count() == 0
            assert tab.errors == []


async def test_an_admin_drains_a_worker_and_takes_it_back(ports: Ports) -> None:
    async with open_tab() as tab:
        page = await visit(tab, ports)
        page.on("dialog", lambda dialog: dialog.accept())
        button = page.locator("#worker-table button[data-worker='7']")
        await button.click()
        await page.locator("#worker-table .badge", has_text="draining").wait_for()
        await page.locator("button[data-worker='7']", has_text="Take back").click()
        await page.locator("#worker-table .badge", has_text="draining").wait_for(state="detached")
        assert tab.errors == []


async def test_a_token_is_asked_for_and_a_reader_changes_nothing(tmp_path: Path) -> None:
    token = "m" * 20
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[caller]]\nname = "m"\ntoken = "{token}"\nroles = ["metrics"]\n')
    tokens.chmod(0o600)
    async with (
        serving(FakeEngine(worker_id=7), auth_tokens=str(tokens)) as ports,
        open_tab() as tab,
    ):
        page = await visit(tab, ports)
        await page.fill("#token", token)
        await page.press("#token", "Enter")
        await page.wait_for_selector("#worker-table tbody tr")
        assert await page.locator("#worker-table tbody button").count() == 0
        assert not await page.is_visible("#what-if")


async def test_text_comes_first_where_there_is_a_tokenizer(ports: Ports) -> None:
    async def tokenize(text: str) -> list[int]:
        return [ord(each) for each in text]

    ports.server.dashboard.tokenize = tokenize
    async with open_tab() as tab:
        page = await visit(tab, ports)
        await page.wait_for_selector("#worker-table tbody tr")
        await page.click("#what-if summary")
        await page.fill("#prompt", "hello")
        await page.click("#what-if button")
        await page.locator("#receipt", has_text="5 tokens").wait_for()
        assert tab.errors == []


async def test_an_outage_is_red_and_over_when_it_is() -> None:
    engine = FakeEngine(worker_id=7)
    async with openai_serving(engine) as served, open_tab() as tab:
        page = tab.page
        await page.goto(f"http://{served.server.http_address}/dashboard")
        await page.wait_for_selector("#verdict.good")
        assert "The worker takes requests" in await page.inner_text("#verdict")
        await engine.stop()
        await page.locator("#verdict.bad", has_text="Outage: 0 of 1 workers").wait_for()
        body = {"model": "tiny", "prompt": [1, 2, 3]}
        assert (await served.post("/v1/completions", body))[0] == 503
        await page.locator("#http-list .bad", has_text="503").wait_for()
        said = await page.inner_text("#verdict")
        assert "Since " in said and "Last error" in said and "unhealthy" in said
        assert await page.title() == "✖ Outage: 0 of 1 workers take requests – dynamo-router"
        await page.locator(".tile.bad", has_text="0 of 1").nth(0).wait_for()
        row = page.locator("#worker-table tbody tr.ill")
        await row.locator(".badge.bad", has_text="unhealthy").wait_for()
        assert "exact" not in await row.inner_text() and "unknown" in await row.inner_text()
        assert tab.errors == []


async def test_an_outage_from_the_start_says_what_its_workers_say(ports: Ports) -> None:
    """Workers that never answered had no fault yet, but a reason."""

    async def alter(route: Any) -> None:
        response = await route.fetch()
        told = await response.json()
        for row in told["workers"]["rows"]:
            row |= {"state": "connecting", "reason": "no <b>such</b> host"}
        told |= {"last_error": None, "down_since": 0.0}
        await route.fulfill(response=response, json=told)

    async with open_tab() as tab:
        await tab.page.route("**/dashboard/state*", alter)
        page = await visit(tab, ports)
        words = "worker 0 is connecting: no <b>such</b> host"
        await page.locator("#verdict-more", has_text=words).wait_for()


async def test_history_is_drawn_and_failures_are_judged(ports: Ports) -> None:
    await ports.answers(prompt("r1", 40))
    async with open_tab() as tab:
        page = await visit(tab, ports)
        verdict = page.locator("#verdict.bad", has_text="of requests fail")

        async def fails() -> bool:
            """One request more, until a step has ended and the page has read it."""
            ports.server.metrics.requests.on_end(None, StatusCode.INTERNAL)
            return bool(await verdict.count())

        await until(fails)
        await page.locator(".tile.bad", has_text="Errors").wait_for()
        assert await page.locator("#tiles .spark").count() >= 9
        lines = await page.locator("#tiles svg").evaluate_all(
            "all => all.map((each) => each.getAttribute('aria-label'))"
        )
        assert all("15 minutes" in line for line in lines) and len(lines) >= 9
        assert tab.errors == []


async def test_many_workers_are_a_grid_with_the_ill_ones_first(ports: Ports) -> None:
    router = ports.server.router
    for number in range(60):
        router.add_worker(1000 + number, address=f"10.0.0.{number}:1")
    router.registry.set_state(1050, WorkerState.UNHEALTHY, "it <b>broke</b>")
    async with open_tab() as tab:
        page = await visit(tab, ports)
        await page.wait_for_selector("#grid rect:nth-child(62)", state="attached")
        first = page.locator("#grid rect").first
        assert await first.get_attribute("data-worker") == "1050"
        assert "it <b>broke</b>" in await first.inner_html() or "&lt;b" in await first.inner_html()
        rows = page.locator("#worker-table tbody tr")
        assert await rows.count() == 12
        assert "unhealthy" in await rows.first.inner_text()
        await page.locator("#verdict.warn", has_text="1 of 62 workers").wait_for()
        await page.click("#page-after")
        assert await page.inner_text("#page-note") == "13 to 24"
        await first.click()
        assert await rows.count() == 1 and "10.0.0.50:1" in await rows.inner_text()
        await first.click()
        assert await rows.count() == 12
        assert tab.errors == []


@pytest.mark.parametrize("width", [390, 1240])
async def test_names_of_others_break_nothing(width: int) -> None:
    words = "\u202e\"'><img src=x onerror=alert(1)>" + "long" * 100
    engine = FakeEngine(fail(grpc.StatusCode.INTERNAL, words), worker_id=7)
    async with (
        serving(engine, model_id="org/" + words) as ports,
        open_tab(viewport={"width": width, "height": 800}) as tab,
    ):
        with pytest.raises(grpc.RpcError):
            await ports.answers(prompt("\u05d0" * 90 + "<i>"))
        ports.server.parts.answers.counts.count(
            RequestRecord(route="/v1/chat/completions", model=words, status=503, error=words)
        )
        page = await visit(tab, ports)
        await page.locator("#http-list", has_text="onerror").wait_for()
        await page.wait_for_selector("#recent tbody th bdi")
        assert await page.locator("main img, main i").count() == 0
        wider = """[...document.querySelectorAll("body *")].filter((each) =>
            !each.closest(".scroll, .unseen") && each.getBoundingClientRect().right > innerWidth + 1
            ).map((each) => each.outerHTML.slice(0, 200))"""
        assert await page.evaluate(wider) == []
        assert tab.errors == []


def without_numbers(value: Any) -> Any:
    """As JSON has NaN, and as an older router answers: each number is null."""
    if isinstance(value, dict):
        return {key: without_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_numbers(each) for each in value]
    return None if isinstance(value, float) else value


async def test_missing_numbers_are_dashes(ports: Ports) -> None:
    await ports.answers(prompt("r1", 40))

    async def alter(route: Any) -> None:
        answer = await route.fetch()
        found = without_numbers(await answer.json())
        found["workers"]["rows"] = [
            {"worker": row["worker"], "state": "ready"} for row in found["workers"]["rows"]
        ]
        await route.fulfill(response=answer, json=found)

    async with open_tab() as tab:
        await tab.page.route("**/dashboard/state*", alter)
        page = await visit(tab, ports)
        await page.wait_for_selector("#worker-table tbody .worker")
        await page.wait_for_selector("#tiles .tile")
        text = await page.inner_text("main")
        assert "NaN" not in text and "undefined" not in text and "Infinity" not in text
        assert tab.errors == []


async def test_a_page_outlives_a_router_and_a_clock_that_jumps(ports: Ports) -> None:
    """The next process is on a machine whose clock is far behind, and jumps."""
    answers: list[str] = ["as it is"]
    await ports.answers(prompt("before", 40))

    async def alter(route: Any) -> None:
        if answers[0] == "none":
            await route.abort()
            return
        answer = await route.fetch()
        found = await answer.json()
        if answers[0] == "other" and "state" in route.request.url:
            behind = found["now"] - 7.0
            found["process"] = "other"
            found["now"] -= behind
            for request in found["requests"]:
                request["arrived"] -= behind
                request["ended"] -= behind
        elif answers[0] == "other":
            found.update(now=7.0, uptime_s=0.5, rows=[])
        await route.fulfill(response=answer, json=found)

    async with open_tab() as tab:
        await tab.page.route("**/dashboard/state*", alter)
        await tab.page.route("**/dashboard/overview*", alter)
        page = await visit(tab, ports)
        await page.wait_for_selector("#timeline rect[data-request='before']")
        answers[0] = "none"
        await page.locator("#verdict.bad", has_text="does not answer").wait_for()
        await page.wait_for_selector("body.stale")
        assert "Since " in await page.inner_text("#verdict")
        answers[0] = "other"
        await page.wait_for_selector("#verdict.good")
        await page.wait_for_selector("body:not(.stale)")
        await page.wait_for_selector("#timeline rect[data-request='before']")
        # The machine of the browser jumps by a day.
        await page.evaluate("{ const now = Date.now; Date.now = () => now() + 86_400_000; }")
        answers[0] = "as it is"
        await page.wait_for_selector("#verdict.good")
        await page.locator("#about", has_text="up ").wait_for()
        assert [each for each in tab.errors if "ERR_FAILED" not in each] == []
