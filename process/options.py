"""Options of the command line, made of settings: SettingsCommand, and its two helps."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import click

from .settings import OptionSpec

MOST_SHOWN = 40
"""Most options in the help of a command that marks some settings as short."""
_UNDER_ALL = "help_all"
_GENERAL = "General"


class SettingsCommand(click.Command):
    """A command whose options are settings. With many of them `--help` has those that are marked
    as short, under their groups, and `--help-all` has all, by section of the configuration file."""

    def __init__(
        self,
        name: str,
        specs: Sequence[OptionSpec],
        more: Sequence[click.Parameter],
        *,
        callback: Callable[..., Any],
        help: str,
    ) -> None:
        """`more`: options that are no settings."""
        self.specs, self._general = specs, list(more)
        shown = sum(spec.packed is None for spec in specs) + len(more) + 1  # --help
        marked = any(spec.short and not spec.section for spec in specs)
        self.is_long = marked and shown > MOST_SHOWN
        """Whether `--help` leaves out what is not marked as short."""
        if self.is_long:
            self._general.append(_help_all())
        params = [_parameter(spec) for spec in specs]
        params += [_packed(option) for option in packed_options(specs)]
        super().__init__(name, params=[*params, *self._general], callback=callback, help=help)

    def shown(self, everything: bool) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """(heading, rows) of the options in a help."""
        everything = everything or not self.is_long
        specs = [spec for spec in self.specs if not spec.positional]
        if not everything:
            specs = [spec for spec in specs if spec.short and spec.packed is None]
        by_section = everything and self.is_long
        rank = {_heading(spec, by_section): i for i, spec in reversed(list(enumerate(specs)))}
        specs.sort(key=lambda spec: rank[_heading(spec, by_section)])
        packed = dict.fromkeys(packed_options(self.specs))
        for heading, group in groupby(specs, key=lambda spec: _heading(spec, by_section)):
            members = list(group)
            rows = [_row(spec, everything) for spec in members if spec.packed is None]
            named = {spec.group for spec in members}
            for option in [each for each in packed if _group(each, self.specs) in named]:
                del packed[option]
                names = ", ".join(spec.key for spec in self.specs if spec.packed == option)
                rows.append((f"{option} KEY=VALUE", f"{_PACKED_HELP} KEY: {names}."))
            rows += [_row(spec, everything) for spec in members if spec.packed is not None]
            yield heading, rows

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = list(self.shown(bool(ctx.meta.get(_UNDER_ALL))))
        records = [param.get_help_record(ctx) for param in (*self._general, *_help_of(self, ctx))]
        general = [record for record in records if record is not None]
        if len(groups) == 1:
            groups = [(groups[0][0], groups[0][1] + general)]
        else:
            groups.append((_GENERAL, general))
        for heading, rows in groups:
            with formatter.section(heading):
                formatter.write_dl(rows)


def identifier(flag: str) -> str:
    """The name under which click hands over what a flag has."""
    return flag.lstrip("-").replace("-", "_")


def packed_options(specs: Sequence[OptionSpec]) -> list[str]:
    """The options that take several settings as KEY=VALUE."""
    return list(dict.fromkeys(spec.packed for spec in specs if spec.packed is not None))


_PACKED_HELP = "A setting of these; may be repeated."


def _group(option: str, specs: Sequence[OptionSpec]) -> str:
    return next(spec.group for spec in specs if spec.packed == option)


def _heading(spec: OptionSpec, by_section: bool) -> str:
    if not by_section:
        return spec.group
    return f"{spec.group} [{spec.section}]" if spec.section else spec.group


def _row(spec: OptionSpec, with_env: bool) -> tuple[str, str]:
    text = spec.help
    if spec.default not in (None, (), ""):
        text += f" [default: {_shown(spec)}]"
    if with_env:
        text += f" [env: {spec.env[0]}]"
    if spec.packed is not None:
        return f"  {spec.key}={_metavar(spec)}", text
    names = ", ".join(spec.flags if with_env else spec.flags[:1])
    if spec.kind is bool:
        return f"{names} / --no-{spec.flags[0].removeprefix('--')}", text
    return f"{names} {_metavar(spec)}", text


def _metavar(spec: OptionSpec) -> str:
    if spec.choices:
        return f"[{'|'.join(spec.choices)}]"
    if spec.kind is bool:
        return "true|false"
    return (spec.unit or spec.kind.__name__).split()[0].upper()


def _shown(spec: OptionSpec) -> str:
    if isinstance(spec.default, bool):
        return "on" if spec.default else "off"
    return str(spec.default)


def _parameter(spec: OptionSpec) -> click.Parameter:
    kind: Any = click.Choice(spec.choices) if spec.choices else spec.kind
    if spec.positional:
        count = -1 if spec.repeated else 1
        required = spec.default is None and not spec.optional
        return click.Argument([spec.name], type=kind, required=required, nargs=count)
    names = [spec.name]
    for flag in spec.flags:
        bare = flag.removeprefix("--")
        names.append(f"--{bare}/--no-{bare}" if spec.kind is bool else flag)
    return click.Option(
        names,
        type=None if spec.kind is bool else kind,
        multiple=spec.repeated,
        default=None,
        help=spec.help,
        hidden=spec.packed is not None,
    )


def _packed(option: str) -> click.Option:
    return click.Option([option], multiple=True, metavar="KEY=VALUE", help=_PACKED_HELP)


def _help_of(command: click.Command, ctx: click.Context) -> list[click.Parameter]:
    option = command.get_help_option(ctx)
    return [] if option is None else [option]


def _help_all() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, given: bool) -> None:
        if given and not ctx.resilient_parsing:
            ctx.meta[_UNDER_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="All options, by section of the configuration file, with their environment names.",
    )
