"""The dashboard's page in a real browser."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.fake_engine import FakeEngine, fail, prompt
from support.observability.browser import Tab, open_tab
from support.serving import Ports, serving


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
        assert str(2**63) in shown and "ready" in shown
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
        await page.fill("#prompt", "1, 2 3 [4]")
        await page.click("#what-if button")
        await page.wait_for_selector("#receipt table")
        assert "4 tokens" in await page.inner_text("#receipt")
        await page.fill("#prompt", "many words")
        await page.click("#what-if button")
        await page.wait_for_selector("#receipt .bad")
        assert await page.is_disabled("input[value=text]")  # nobody has a tokenizer here
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
