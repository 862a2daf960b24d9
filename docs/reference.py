"""A hook of MkDocs: the reference pages, made from the code when the site is built.

`reference/settings/COMMAND.md` has every setting of a command, `reference/grpc.md` RouterService
with the comments of its protocol file.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from dynamo_router.cli import COMMANDS, ENGINES, Entry
from dynamo_router.process.settings import OptionSpec, options_of

ROOT = Path(__file__).parent.parent
_COMMANDS = ("serve", "frontend", "epp", "mocker", "simulate", "replay")
SHOWN = {
    **{name: COMMANDS[name] for name in _COMMANDS},
    **{f"worker {name}": entry for name, entry in ENGINES.items()},
}
TYPES = {int: "whole number", float: "number", bool: "on or off", str: "text", Path: "path"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to those of the folder."""
    for uri, content in pages():
        files.append(File.generated(config, uri, content=content))
    return files


def pages() -> Iterator[tuple[str, str]]:
    """(path below docs, Markdown) of each."""
    for name, entry in SHOWN.items():
        yield f"reference/settings/{name.replace(' ', '-')}.md", settings_page(name, entry)
    yield "reference/grpc.md", grpc_page((ROOT / "router/proto/router.proto").read_text())


def settings_page(name: str, entry: Entry) -> str:
    """Every setting of a command: flags, environment names, key of the file, type and default."""
    module, _, settings = entry.config.partition(":")
    cls = getattr(import_module(f"dynamo_router.{module}"), settings)
    lines = [
        f"# Settings of `dynamo-router {name}`",
        "",
        f"{entry.summary} A flag goes before its environment variable, that before the key of"
        " the file of `--config` (TOML), that before the default.",
    ]
    sections: dict[str, list[str]] = {}
    for spec in options_of(cls):
        sections.setdefault(spec.key.rpartition(".")[0] or "general", []).append(setting_row(spec))
    for section, rows in sections.items():
        lines += [
            "",
            f"## {section}",
            "",
            "| setting | meaning | default |",
            "|---|---|---|",
            *rows,
        ]
    return "\n".join(lines) + "\n"


def setting_row(spec: OptionSpec) -> str:
    names = [f"`{name}`" for name in (*spec.flags, *spec.env, spec.key)]
    kind = ", ".join(f"`{choice}`" for choice in spec.choices) if spec.choices else TYPES[spec.kind]
    kind += ", repeatable" if spec.repeated else ""
    return f"| {'<br>'.join(names)} | {cell(spec.help)} ({kind}) | {shown(spec.default)} |"


def shown(default: Any) -> str:
    if default is None or default == () or default == "":
        return "-"
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else f"`{default}`"


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def grpc_page(proto: str) -> str:
    """The protocol file under a head; its comments are its documentation."""
    return (
        "# gRPC\n\nClients call TensorRT-LLM's own service, `trtllm.TrtllmService`"
        " ([engines](../engines.md)). Those that call engines themselves ask `RouterService`"
        f" on the same port:\n\n```proto\n{proto.rstrip()}\n```\n"
    )
