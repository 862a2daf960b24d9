"""The command dynamo-router: one short entry per command; the work is in the floors below.

A command is a settings dataclass and a function that takes it. Its options, help texts and
environment variables are read off the dataclass.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from .base.errors import RouterError
from .base.urls import redact_text
from .process.config_file import config_file, write_new
from .process.environment import unknown_names
from .process.options import SettingsCommand, identifier, packed_options
from .process.settings import (
    ENV_PREFIX,
    OptionSpec,
    Resolved,
    SettingsSource,
    nearest,
    old_names_used,
    options_of,
    unpack,
)

CONFIG_FILE = "dynamo-router.toml"
"""What `config --init` writes where it gets no name."""
BUILDS = ("DEBUG", "GENERATED", "SANITIZE", "TRACE")
"""What builds of the kernels read, with our prefix."""
INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it: 128 and the number of the signal."""


@dataclass(frozen=True)
class Entry:
    """Where a command lives. Imported when it is called, not before."""

    summary: str
    config: str  # "module:Dataclass"
    run: str | None  # "module:function", called with the dataclass, returns the exit code
    check: str | None = None  # called before it with the dataclass and the keys of flags given
    reads_again: bool = False  # `run` gets the SettingsSource too
    env: str | None = None  # prefix of its environment names, if not its own name


COMMANDS: Mapping[str, Entry] = {
    "serve": Entry(
        "Route requests to engines.",
        "frontend.config:ServeFrontendConfig",
        "frontend.serve:run",
        reads_again=True,
    ),
    "frontend": Entry(
        "Serve the models of a store to OpenAI clients.",
        "frontend.config:ModelFrontendConfig",
        "frontend.serve:run_models",
        reads_again=True,
    ),
    "epp": Entry(
        "Pick endpoints for Envoy, by its external processing.",
        "frontend.picker_config:PickerConfig",
        "frontend.epp.serve:run",
        reads_again=True,
    ),
    "mocker": Entry(
        "Run mock engines.", "engines.mocker.config:MockerConfig", "engines.mocker.fleet:run"
    ),
    "simulate": Entry(
        "Policies on a trace, in virtual time.",
        "bench.simulate:SimulateConfig",
        "bench.simulate:run",
    ),
    "replay": Entry(
        "Replay a trace to a live target; without --target, the same as simulate.",
        "bench.replay:ReplayConfig",
        "bench.replay:run",
        "bench.replay:check_given",
    ),
    "sweep": Entry("Tune the knobs on a trace.", "bench.sweep:SweepConfig", "bench.sweep:run"),
    "report": Entry(
        "A page on recorded traffic: how well it was routed, what to change.",
        "bench.report:ReportConfig",
        "bench.report:run",
    ),
    "analyze": Entry("What a trace is like.", "bench.analyze:AnalyzeConfig", "bench.analyze:run"),
    "synthesize": Entry(
        "More of the same traffic.", "bench.synthesize:SynthesizeConfig", "bench.synthesize:run"
    ),
    "plan": Entry(
        "How many engines a day needs: a planner beside other rules and bounds.",
        "planner.command:PlanConfig",
        "planner.command:run",
    ),
    "demo": Entry("KV-aware against round-robin.", "bench.demo:DemoConfig", "bench.demo:run"),
    "planner": Entry(
        "Start and stop engines, as many as the traffic needs.",
        "planner.live.config:PlannerConfig",
        "planner.live.command:run",
    ),
    "doctor": Entry(
        "Check a deployment of serve: what is wrong, and what to do.",
        "frontend.config:DoctorConfig",
        "frontend.doctor:run",
        reads_again=True,
    ),
    "config": Entry(
        "Print the configuration of serve.", "frontend.config:ServeFrontendConfig", None
    ),
}


def _bench(summary: str, config: str, run: str | None = None) -> Entry:
    """A measurement: of the module that has its settings, where `run` names no other. One that
    calls servers is a name: settings of those load no client."""
    run = run or f"{config.partition(':')[0]}:run"
    if ":" not in config:
        config = f"settings:{config.capitalize()}BenchConfig"
    return Entry(summary, f"bench.workbench.{config}", f"bench.workbench.{run}")


BENCHES: Mapping[str, Entry] = {
    "index": _bench("The index.", "index.config:IndexBenchConfig", "index.command:run"),
    "decision": _bench("A routing decision.", "decision:DecisionBenchConfig"),
    "dispatcher": _bench("A request without any transport.", "dispatcher"),
    "streams": _bench(
        "Events of engines until the index shows them.",
        "settings:StreamsBenchConfig",
        "streams:run",
    ),
    "fidelity": _bench("Synthesized traces.", "fidelity:FidelityConfig"),
    "disagg": _bench(
        "Prefill and decode engines apart, or not.", "disaggregation:DisaggBenchConfig"
    ),
    "flood": _bench("A tenant beside one that sends too much.", "flood:FloodConfig"),
    "grid": _bench("A policy in many fleets.", "grid:GridConfig"),
    "live": _bench("Real processes beside the simulation.", "live:LiveConfig"),
    "hostile": _bench(
        "What a peer that misbehaves costs the others.",
        "settings:HostileBenchConfig",
        "hostile.command:run",
    ),
    "path": _bench("A request's whole way, beside Dynamo's.", "path"),
    "plan": Entry(
        "The planner beside tuned scalers, on many days.",
        "planner.grid.command:PlanGridConfig",
        "planner.grid.command:run",
    ),
    "prefill-queue": _bench(
        "Prompts through the prefill queue.", "settings:QueueBenchConfig", "prefill_queue:run"
    ),
    "restart": _bench(
        "A router that starts again, its events in a stream.",
        "settings:RestartBenchConfig",
        "restart:run",
    ),
    "selection": _bench(
        "A worker chosen over the wire, beside Dynamo's service.",
        "settings:SelectionBenchConfig",
        "selection:run",
    ),
    "transfer": _bench("KV blocks from engine to engine.", "transfer:TransferBenchConfig"),
}
ENGINES: Mapping[str, Entry] = {
    "trtllm": Entry(
        "TensorRT-LLM, in this process.",
        "engines.adapters.config:TrtllmConfig",
        "engines.adapters.trtllm:run",
    ),
    "vllm": Entry(
        "vLLM, in this process.",
        "engines.adapters.config:VllmConfig",
        "engines.adapters.vllm:run",
    ),
}
WORKERS: Mapping[str, Entry] = {
    name: Entry(
        summary,
        f"server.worker_commands:{name.capitalize()}Config",
        f"server.worker_commands:{run}",
        env=f"{ENV_PREFIX}WORKERS_",
    )
    for name, run, summary in (
        ("list", "list_workers", "Show them, their states and loads."),
        ("add", "add", "Add one, or take one that drains back."),
        ("drain", "drain", "Send one no new requests."),
        ("weight", "weight", "Give one another share of the requests."),
        ("remove", "remove", "Forget one."),
    )
}
SERVERS = ("serve", "frontend", "epp", "planner")
"""The commands that run until a signal ends them, each with a configuration file."""
NAMES = (*COMMANDS, *BENCHES, *ENGINES, "workers")
"""What the prefixes of environment names are made of."""


class LazyGroup(click.Group):
    """A group whose commands are built from their entries when they are asked for."""

    def __init__(self, entries: Mapping[str, Entry], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._entries, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._entries:
            return build_command(cmd_name, self._entries[cmd_name])
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # also while a command is still being imported
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}{nearest(name, known)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, entry.summary) for name, entry in self._entries.items()]
        rows += [(name, command.help or "") for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def build_command(name: str, entry: Entry) -> click.Command:
    """The click command of an entry: imports its settings dataclass, not yet its function."""
    cls = _load(entry.config)
    env_prefix = _env_prefix(name, entry)
    specs = options_of(cls, env_prefix=env_prefix)
    more: list[click.Parameter] = [
        click.Option(["--config"], help="TOML file of settings.", metavar="FILE", default=None)
    ]
    if entry.run is None:
        more += _config_options()

    def call(config: str | None, **given: Any) -> None:
        init, as_json, check, command = (
            given.pop(name, None) for name in ("init", "as_json", "check", "command")
        )
        flags = {spec.key: given[spec.name] for spec in specs if given[spec.name] not in (None, ())}
        texts = _strange_names(specs, env_prefix) + old_names_used(specs, os.environ, flags)
        for text in texts:
            click.echo(f"dynamo-router: warning: {text}", err=True)
        for packed in packed_options(specs):
            flags |= unpack(packed, given[identifier(packed)], specs, flags)
        source = SettingsSource(cls, flags, config, env_prefix)
        resolved = source.current
        if check is not None:
            _check_file(check, command)
            return
        if init is not None:
            _write_file(init, specs, resolved)
            return
        if entry.run is None:
            _print_settings(resolved, as_json)
            return
        if entry.check is not None:
            _load(entry.check)(resolved.config, flags)
        again = (source,) if entry.reads_again else ()
        sys.exit(_load(entry.run)(resolved.config, *again))

    return SettingsCommand(name, specs, more, callback=call, help=entry.summary)


def _env_prefix(name: str, entry: Entry) -> str:
    """What a command's environment names begin with; settings of the router have the short one."""
    serving = name in ("serve", "config", "doctor")
    return entry.env or (ENV_PREFIX if serving else f"{ENV_PREFIX}{name.upper()}_")


def _strange_names(specs: list[OptionSpec], env_prefix: str) -> list[str]:
    """What the environment has under this command's prefix that is no setting of it."""
    known = {name for spec in specs for name in spec.env}
    others: set[str] = set()
    if env_prefix == ENV_PREFIX:  # all other prefixes begin with it
        others = {f"{ENV_PREFIX}{name.upper()}_" for name in NAMES}
        known |= {f"{ENV_PREFIX}{name}" for name in BUILDS}
    return unknown_names(os.environ, known, prefix=env_prefix, others=others)


def _config_options() -> list[click.Parameter]:
    """What `config` has beside the settings of serve."""
    return [
        click.Option(["as_json", "--json"], is_flag=True, help="As JSON."),
        click.Option(
            ["--init"],
            is_flag=False,
            flag_value=CONFIG_FILE,
            metavar="[FILE]",
            help="Write a new configuration file instead, with every setting, commented; those"
            f' given here are in force in it. Without a name {CONFIG_FILE}; "-" is stdout.',
        ),
        click.Option(
            ["--check"],
            metavar="FILE",
            help="Read a configuration file as --command would, and print what is wrong with it.",
        ),
        click.Option(
            ["--command"],
            type=click.Choice(SERVERS),
            default=SERVERS[0],
            show_default=True,
            help="Whose file --check reads.",
        ),
    ]


def _check_file(path: str, command: str) -> None:
    """Say how many settings of the command a file has. ConfigError as for the command itself."""
    entry = COMMANDS[command]
    resolved = SettingsSource(_load(entry.config), {}, path, _env_prefix(command, entry)).current
    count = sum(origin.startswith("file ") for origin in resolved.origins.values())
    click.echo(f"{path}: {count} settings of {command}, each valid")


def _write_file(path: str, specs: list[OptionSpec], resolved: Resolved[Any]) -> None:
    kept = ("flag ", "file ")  # not what is in the environment, secrets among it
    given = {
        key: value
        for key, value in resolved.values.items()
        if resolved.origins[key].startswith(kept)
    }
    text = config_file(specs, given)
    if path == "-":
        click.echo(text, nl=False)
        return
    write_new(path, text)
    click.echo(f"wrote {path}; try: dynamo-router config --config {path}")


def _print_settings(resolved: Resolved[Any], as_json: bool) -> None:
    rows = resolved.describe()
    if as_json:
        tree = {key: {"value": value, "origin": origin} for key, value, origin in rows}
        click.echo(json.dumps(tree, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "value", "origin", box=None)
    for key, value, origin in rows:
        table.add_row(key, str(value), origin)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


def _build_root() -> click.Group:
    root = LazyGroup(COMMANDS, help="A KV-cache-aware router for LLM inference fleets.")
    root.add_command(LazyGroup(BENCHES, name="bench", help="Measure a part, beside its rivals."))
    root.add_command(LazyGroup(ENGINES, name="worker", help="Run an engine as a worker."))
    root.add_command(LazyGroup(WORKERS, name="workers", help="Workers of a running router."))
    click.version_option(package_name="dynamo-router", prog_name="dynamo-router")(root)
    return root


def main() -> None:
    """Run the command line; a refused setting or a port in use is one line, not a trace."""
    # Children are started by exec only; gRPC's remarks on fork would be noise.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        _build_root().main(prog_name="dynamo-router")
    except RouterError as error:
        click.echo(f"dynamo-router: {redact_text(str(error))}", err=True)
        sys.exit(2)
