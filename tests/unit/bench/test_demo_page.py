"""The page of `demo --watch`: both ways side by side, within the width that there is."""

import asyncio
from io import StringIO

import pytest
from rich.console import Console

from dynamo_router.bench.demo_page import NARROW, DemoPage
from dynamo_router.bench.load.stats import LoadStats, Outcome

MODES = ("round-robin", "kv")
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


def page(console: Console | None = None) -> DemoPage:
    """The first way is done, the second runs."""
    page = DemoPage(MODES, "demo", console)
    stats = LoadStats()
    for ttft_ms in (100.0, 300.0):
        stats.add(Outcome(input_tokens=100, cached_tokens=40, output_tokens=8, ttft_ms=ttft_ms))
    stats.add(Outcome(code="UNAVAILABLE"))
    for number in (0, 1):
        page.start(number)
        page.show_dashboard(number, f"http://127.0.0.1:{number + 1000}/dashboard")
        page.load(number, 7, stats)
    page.end(0, stats.run(2.0, mode="round-robin"))
    return page


def text(page: DemoPage, width: int) -> list[str]:
    console = Console(file=StringIO(), width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(page.content(width))
    return capture.get().splitlines()


def row(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.startswith(name))


def test_side_by_side() -> None:
    lines = text(page(), 110)
    assert any("round-robin" in line and "kv" in line for line in lines)
    assert row(lines, "TTFT, mean").count("200 ms") == 2
    assert row(lines, "failed").split()[-1] == "1"
    assert row(lines, "tokens from caches").count("40 %") == 2
    sent = row(lines, "requests")
    assert "7 of 7" in sent and "3 of 7" in sent
    assert any("done in 2 s" in line and "running, " in line for line in lines)
    assert ":1000/dashboard" in row(lines, "dashboard")
    assert ":1001/dashboard" in row(lines, "dashboard")


@pytest.mark.parametrize("width", [20, 30, NARROW - 1, NARROW, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = text(page(), width)
    assert max(map(len, lines)) <= width
    below = not any("round-robin" in line and "kv" in line for line in lines)
    assert below == (width < NARROW)


def test_before_its_turn_a_way_has_no_figures() -> None:
    waiting = DemoPage(MODES, "demo")
    waiting.start(0)
    lines = text(waiting, 110)
    assert any("starts" in line and "waits for its turn" in line for line in lines)
    assert row(lines, "TTFT, mean").split()[-1] == "-"


async def test_the_terminal_is_as_before_when_it_ends() -> None:
    file = StringIO()
    console = Console(file=file, width=100, height=30, force_terminal=True)
    with pytest.raises(KeyboardInterrupt):
        async with page(console):
            async with asyncio.timeout(60):
                while "round-robin" not in file.getvalue():
                    await asyncio.sleep(0)
            raise KeyboardInterrupt
    written = file.getvalue()
    assert written.index(ENTER) < written.index("round-robin") < written.rindex(LEAVE)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
