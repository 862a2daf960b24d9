"""dynamo-router demo: the same requests, to the same engines, routed in two ways."""

import asyncio
import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, replace
from functools import partial

from ..process.setting_checks import require_at_least, require_positive
from ..process.settings import bad_setting, option
from ..router.policy import MODES
from .demo_page import DemoPage, watches_on_terminal
from .load import OnStart, ServeProcess, mock_fleet_arguments, progress_bar
from .planner_demo import run_planner_demo
from .replay import ReplayConfig, new_loop, replay
from .results import Output, Run, runs_content, runs_table
from .synthesizer import SAMPLE_TRACE


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """What to show. Raises ConfigError, naming the key, on a bad value.

    The defaults make routing matter: the engines' caches together hold most of what the trace
    repeats, one alone does not, and the engines are busy but not overrun.
    """

    modes: tuple[str, ...] = option(
        ("round-robin", "kv"),
        "Ways of routing to compare, in this order; may be repeated.",
        flag="--mode",
        choices=MODES,
    )
    trace: str | None = option(None, "Requests to send; not given: the trace that ships with us.")
    requests: int | None = option(None, "Send only the trace's first N requests.")
    arrival_speedup: float = option(1.0, "Send at the trace's times divided by this.")
    workers: int = option(4, "Mock engines.")
    block_size: int = option(64, "Tokens in a KV-cache block.")
    num_gpu_blocks: int = option(1024, "KV-cache blocks of each engine.")
    seed: int = option(0, "Content of the prompts.")
    disagg: bool = option(
        False,
        "Show another thing: two prefill and two decode engines that share prompts through a queue,"
        " beside four that do both. Of the others --seed, --progress, --picture and --json count.",
        "--disagg",
    )
    picture: str | None = option(
        None,
        "With --disagg: record where one more prompt goes, and draw it to this SVG file.",
    )
    start_timeout_s: float = option(
        60.0, "Wait this long for the router and its engines.", flag="--start-timeout"
    )
    progress: bool = option(
        True, "Show progress on stderr: a bar on a terminal, else a line every 5 s."
    )
    watch: bool = option(
        False,
        "Show all ways side by side meanwhile, and keep their routers and dashboards until Ctrl-C.",
    )
    planner: bool = option(
        False, "Show the planner instead: a wave of load, and engines that come and go with it."
    )
    json: str | None = option(None, 'Write the result as JSON to this file; "-" is stdout.')

    def __post_init__(self) -> None:
        if not self.modes:
            raise bad_setting("modes", "at least one is needed")
        require_at_least(self, 1, "workers", "block_size", "num_gpu_blocks")
        require_positive(self, "start_timeout_s")
        self.replay_config()  # which checks the rest
        if self.picture is not None and not self.disagg:
            raise bad_setting("picture", "is one of --disagg")
        if self.planner:
            usual = {each.name: each.default for each in fields(self)}
            for key in ("modes", "trace", "requests", "arrival_speedup", "watch"):
                if getattr(self, key) != usual[key]:
                    raise bad_setting(key, "has no use with --planner, which has its own load")

    def replay_config(self) -> ReplayConfig:
        """The load, the same for every mode."""
        return ReplayConfig(
            trace=self.trace or str(SAMPLE_TRACE),
            requests=self.requests,
            arrival_speedup=self.arrival_speedup,
            seed=self.seed,
            workers=self.workers,
        )

    def serve_arguments(self, mode: str) -> list[str]:
        """The command line of the router under test: mock engines of its own, free ports."""
        return mock_fleet_arguments(
            mode,
            workers=self.workers,
            block_size=self.block_size,
            num_gpu_blocks=self.num_gpu_blocks,
        )


async def run_demo(config: DemoConfig, show: Callable[[list[Run]], None]) -> list[Run]:
    """One run per mode, each with engines that have seen nothing before. Says on stderr what it
    does. `show` is called once all are done. To be watched, the routers stay until this is
    cancelled; on a terminal `show` is called when their page has ended. Leaves no process behind,
    also then."""
    runs: list[Run] = []
    if config.watch and watches_on_terminal():
        try:
            await _watch_page(config, runs)
        finally:
            if len(runs) == len(config.modes):
                show(runs)
        return runs
    async with AsyncExitStack() as routers:
        for mode in config.modes:
            print(f"{mode}: starting {config.workers} engines and a router", file=sys.stderr)
            async with AsyncExitStack() as this:
                serving = await (routers if config.watch else this).enter_async_context(
                    _router(config, mode)
                )
                if config.watch:
                    url = _dashboard(serving)
                    print(f"{mode} dashboard: {url}", file=sys.stderr)
                on_start = await this.enter_async_context(progress_bar(mode, config.progress))
                runs.append(await _replay(config, serving, on_start))
        show(runs)
        if config.watch:
            print("The routers are still there; Ctrl-C ends them.", file=sys.stderr)
            await asyncio.Event().wait()
    return runs


async def _watch_page(config: DemoConfig, runs: list[Run]) -> None:
    """The same on the page of a terminal, until it is cancelled."""
    title = f"dynamo-router demo: {config.workers} mock engines for each way of routing"
    async with AsyncExitStack() as routers, DemoPage(config.modes, title) as page:
        for number, mode in enumerate(config.modes):
            page.start(number)
            serving = await routers.enter_async_context(_router(config, mode))
            page.show_dashboard(number, _dashboard(serving))
            open_dashboard(_dashboard(serving))
            runs.append(await _replay(config, serving, partial(page.load, number)))
            page.end(number, runs[-1])
        page.verdict = verdict(runs)
        await asyncio.Event().wait()


def _router(config: DemoConfig, mode: str) -> ServeProcess:
    return ServeProcess(
        config.serve_arguments(mode),
        workers=config.workers,
        start_timeout_s=config.start_timeout_s,
    )


async def _replay(config: DemoConfig, serving: ServeProcess, on_start: OnStart | None) -> Run:
    return await replay(replace(config.replay_config(), target=serving.grpc_address), on_start)


def _dashboard(serving: ServeProcess) -> str:
    return f"http://{serving.http_address}/dashboard"


def open_dashboard(url: str) -> None:
    """Open it in a browser where there is a screen."""
    if sys.stderr.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(url)


def verdict(runs: Sequence[Run]) -> str:
    """What the last run has gained over the first, or lost, in a sentence."""
    base, run = runs[0], runs[-1]
    for each in runs:
        if each.errors or each.rejected:
            failed = each.errors + each.rejected
            return f"{each.mode} failed {failed} of {each.requests} requests: no comparison."
    shares = (run.cached_token_share, base.cached_token_share)
    means = (run.ttft_ms.mean, base.ttft_ms.mean)
    if len(runs) < 2 or None in shares or None in means:
        return f"{run.mode}: {run.requests} requests, all answered."
    share, base_share = (value or 0.0 for value in shares)
    mean, base_mean = (value or 0.0 for value in means)
    ratio = base_mean / mean if mean < base_mean else mean / base_mean
    outcome = "sooner" if mean < base_mean else "LATER"
    return (
        f"{run.mode} took {share:.0%} of all prompt tokens from the engines' caches, {base.mode}"
        f" {base_share:.0%}; the first token came after {mean:.0f} ms instead of"
        f" {base_mean:.0f} ms, {ratio:.1f} times {outcome}."
    )


def run(config: DemoConfig) -> int:
    """The command: 0, or 1 if a request failed."""
    output = Output(config.json)
    if config.planner:
        return _run_planner(config, output)
    if config.disagg:
        from .demo_disagg import DisaggDemo, run_disagg  # with NATS' client, for this alone

        shown = DisaggDemo(config.seed, config.start_timeout_s, config.progress, config.picture)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return 0 if runner.run(run_disagg(shown, output)) else 1
    done: list[Run] = []

    def show(runs: list[Run]) -> None:
        output.print(
            f"{config.workers} mock engines, the same {runs[0].requests} requests each time"
        )
        output.print(runs_table(runs))
        output.print(verdict(runs))
        output.write(runs_content(runs))
        if not config.watch:
            output.print("To see every request and why it went where it did: demo --watch")
        done.extend(runs)

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(run_demo(config, show))
    except KeyboardInterrupt:
        if not done:
            raise
    return 1 if any(run.errors + run.rejected for run in done) else 0


def _run_planner(config: DemoConfig, output: Output) -> int:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        done = runner.run(
            run_planner_demo(
                engines_max=config.workers,
                block_size=config.block_size,
                num_gpu_blocks=config.num_gpu_blocks,
                seed=config.seed,
                start_timeout_s=config.start_timeout_s,
            )
        )
    for table in done.tables():
        output.print(table)
    output.print("No stream was cut." if not done.failed else f"{done.failed} requests failed.")
    output.write(done.content)
    return 1 if done.failed else 0
