"""A hook of MkDocs: the reference pages, made from the code when the site is built.

`reference/settings/COMMAND.md` has every setting of a command, `reference/http.md` every route with
its roles, fields and statuses, `reference/grpc.md` RouterService with the comments of its protocol.
"""

import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from dynamo_router.cli import COMMANDS, ENGINES, Entry
from dynamo_router.frontend.anthropic.requests import CountRequest, MessagesRequest
from dynamo_router.frontend.embeddings import EmbeddingRequest
from dynamo_router.frontend.openai.errors import error_type
from dynamo_router.frontend.openai.refused_fields import RefusedFields
from dynamo_router.frontend.openai.requests import ChatRequest, CompletionRequest
from dynamo_router.frontend.responses.requests import ResponsesRequest
from dynamo_router.process.settings import OptionSpec, options_of
from dynamo_router.server.access.roles import FRONTEND_RULES, RULES, Rule
from dynamo_router.server.dispatch import HTTP_STATUSES

ROOT = Path(__file__).parent.parent
_COMMANDS = ("serve", "frontend", "epp", "planner", "mocker", "simulate", "replay")
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
    yield "reference/http.md", http_page()
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


REQUESTS: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/v1/embeddings": EmbeddingRequest,
}
"""The JSON of a request, by its route."""


_NAMES = {
    "StrType": "text",
    "IntType": "whole number",
    "FloatType": "number",
    "NoneType": "null",
    "BoolType": "boolean",
    "AnyType": "JSON",
    "RawType": "JSON",
}
"""What a type of msgspec is in JSON; all others are objects."""


def http_page() -> str:
    """The routes with their roles, the fields of each request, the statuses of errors."""
    own = {call: rule for call, rule in RULES.items() if not call.startswith("/")}
    admin = {call: rule for call, rule in own.items() if call not in FRONTEND_RULES}
    lines = [
        "# HTTP",
        "",
        "A route answers callers with one of its roles ([security](../security.md#callers)); where"
        " callers need no token, all of them.",
        *_routes("Routes of models", FRONTEND_RULES),
        *_routes("Routes of the router", admin),
    ]
    refused = set(RefusedFields.__struct_encode_fields__)
    for path, kind in REQUESTS.items():
        lines += [
            "",
            f"## Fields of `{path}`",
            "",
            "| field | type | default |",
            "|---|---|---|",
        ]
        fields = [each for each in msgspec.structs.fields(kind) if each.encode_name not in refused]
        lines += [_field_row(each) for each in fields]
        if issubclass(kind, RefusedFields):
            names = ", ".join(f"`{name}`" for name in RefusedFields.__struct_encode_fields__)
            lines += ["", f"400, but for the value that asks for nothing: {names}."]
    lines += [
        "",
        "## Statuses of errors",
        "",
        "| status | gRPC | `type` of the error |",
        "|---|---|---|",
    ]
    for code, status in HTTP_STATUSES.items():
        words = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Client left"
        lines.append(f"| {status} {words} | `{code.name}` | `{error_type(status)}` |")
    return "\n".join(lines) + "\n"


def _routes(title: str, rules: Mapping[str, Rule]) -> Iterator[str]:
    yield from ("", f"## {title}", "", "| method | path | roles |", "|---|---|---|")
    for call, rule in rules.items():
        method, _, path = call.partition(" ")
        roles = "no token needed" if rule.open else ", ".join(sorted(f"`{r}`" for r in rule.roles))
        where = ", admin listener" if rule.admin_listener else ""
        yield f"| {method} | `{path}` | {roles}{where} |"


def _field_row(field: msgspec.structs.FieldInfo) -> str:
    return f"| `{field.encode_name}` | {type_text(field.type)} | {_default(field)} |"


def type_text(kind: Any) -> str:
    """A type as JSON has it."""
    info = msgspec.inspect.type_info(kind)
    return _kind(info)


def _kind(info: Any) -> str:
    if isinstance(info, msgspec.inspect.UnionType):
        return " or ".join(dict.fromkeys(map(_kind, info.types)))
    if isinstance(info, msgspec.inspect.LiteralType):
        return ", ".join(f"`{value}`" for value in info.values)
    if isinstance(info, msgspec.inspect.CollectionType):
        return f"list of {_kind(info.item_type)}"
    return _NAMES.get(type(info).__name__, "object")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    if field.default is msgspec.NODEFAULT:
        return "-"
    return f"`{msgspec.json.encode(field.default).decode()}`" if field.default is not None else "-"


def grpc_page(proto: str) -> str:
    """The protocol file under a head; its comments are its documentation."""
    return (
        "# gRPC\n\nClients call TensorRT-LLM's own service, `trtllm.TrtllmService`"
        " ([engines](../engines.md)). Those that call engines themselves ask `RouterService`"
        f" on the same port:\n\n```proto\n{proto.rstrip()}\n```\n"
    )
