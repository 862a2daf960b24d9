"""A real browser without a screen, for tests of pages: Debian's chromium, driven by Playwright."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 60_000
"""How long a page may take to show something, on a machine that is busy."""


def find_chromium() -> str:
    """The browser's path; skips the test where there is none, or nothing to drive it."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    pytest.skip("there is no chromium here: apt-get install chromium")


class Tab:
    """A page, with what it said and asked for. `errors` must stay empty."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.urls: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._on_console)
        page.on("request", lambda request: self.urls.append(request.url))
        page.set_default_timeout(WAIT_MS)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)


@asynccontextmanager
async def open_tab(**context: Any) -> AsyncIterator[Tab]:
    """A tab of a fresh browser, closed in the end; `context` goes to Playwright's new_context."""
    path = find_chromium()
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        # It is a test's own page that it opens, and containers forbid the sandbox.
        browser = await driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            made = await browser.new_context(**context)
            yield Tab(await made.new_page())
        finally:
            await browser.close()
