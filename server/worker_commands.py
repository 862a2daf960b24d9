"""dynamo-router workers list, add, drain, weight, remove: admin calls to a running router.

0: done. 1: the router refused, with its words, or a worker that was waited for still has requests.
"""

import json
import ssl
import sys
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import click

from ..base.errors import ConfigError
from ..base.urls import redact_url
from ..process.settings import bad_setting, option
from ..transport.security import client_context, read_secret

WAIT_MORE_S = 5.0
"""On top of what the router was asked to wait."""

Answer = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class AdminClientConfig:
    """Which router is meant, and what it is shown."""

    router: str = option(
        "http://127.0.0.1:8081", "Its admin listener, http://HOST:PORT or https://HOST:PORT."
    )
    token: str | None = option(
        None, "Bearer token of a caller with the role admin. A flag can be read by others."
    )
    token_file: str | None = option(None, "File with that token.")
    tls_ca: str | None = option(
        None, "Authorities that its certificate is of; not given: the system's."
    )
    tls_cert: str | None = option(None, "Our certificate, for a router that asks for one.")
    tls_key: str | None = option(None, "Its key.")
    timeout_s: float = option(10.0, "How long an answer may take.")
    json: bool = option(False, "Print the router's answer as it is.")

    def __post_init__(self) -> None:
        if (
            urlsplit(self.router).scheme not in ("http", "https")
            or not urlsplit(self.router).netloc
        ):
            shown = redact_url(self.router)
            raise bad_setting("router", f"{shown!r} is not http://HOST:PORT or https://HOST:PORT")
        if self.token is not None and self.token_file is not None:
            raise bad_setting("token_file", "the token is given already")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise bad_setting("tls_key", "a certificate and its key go together")
        if not self.timeout_s > 0:
            raise bad_setting("timeout_s", "must be greater than 0")


def _client() -> Any:
    return field(default_factory=AdminClientConfig, metadata={"inline": True})


def _worker() -> Any:
    return _argument("Its id or HOST:PORT.")


def _argument(help: str) -> Any:
    return field(metadata={"help": help, "positional": True})


@dataclass(frozen=True, kw_only=True)
class ListConfig:
    client: AdminClientConfig = _client()


@dataclass(frozen=True, kw_only=True)
class AddConfig:
    url: str = _argument("grpc://HOST:PORT[?id=WORKER_ID]")
    weight: float | None = option(None, "Share of requests, above 0 and at most 1.")
    client: AdminClientConfig = _client()


@dataclass(frozen=True, kw_only=True)
class DrainConfig:
    worker: str = _worker()
    deadline_s: float | None = option(
        None, "Wait for its last request, at most so long. Not given: do not wait."
    )
    client: AdminClientConfig = _client()


@dataclass(frozen=True, kw_only=True)
class WeightConfig:
    worker: str = _worker()
    weight: float = _argument("Above 0 and at most 1.")
    client: AdminClientConfig = _client()


@dataclass(frozen=True, kw_only=True)
class RemoveConfig:
    worker: str = _worker()
    force: bool = option(False, "Though it has requests.")
    client: AdminClientConfig = _client()


def list_workers(config: ListConfig) -> int:
    """Print every worker, one row a rank."""
    code, answer = _call(config.client, "GET", "/workers")
    if code != 200 or config.client.json:
        return _show(config.client, code, answer)
    from rich.console import Console
    from rich.table import Table

    columns = ("worker", "rank", "address", "state", "weight", "requests", "reason")
    table = Table(*columns, box=None)
    for row in answer["workers"]:
        keys = ("worker_id", "dp_rank", "address", "state", "weight", "active_requests", "reason")
        table.add_row(*("" if row[key] is None else str(row[key]) for key in keys))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0


def add(config: AddConfig) -> int:
    body: Answer = {"url": config.url}
    if config.weight is not None:
        body["weight"] = config.weight
    return _show(config.client, *_call(config.client, "POST", "/workers", body))


def drain(config: DrainConfig) -> int:
    body = {} if config.deadline_s is None else {"deadline_s": config.deadline_s}
    path = f"/workers/{quote(config.worker, safe='')}/drain"
    code, answer = _call(config.client, "POST", path, body, config.deadline_s or 0.0)
    shown = _show(config.client, code, answer)
    waited_in_vain = config.deadline_s is not None and not answer.get("drained")
    return shown or int(waited_in_vain)


def weight(config: WeightConfig) -> int:
    path = f"/workers/{quote(config.worker, safe='')}"
    body = {"weight": config.weight}
    return _show(config.client, *_call(config.client, "PATCH", path, body))


def remove(config: RemoveConfig) -> int:
    path = f"/workers/{quote(config.worker, safe='')}" + ("?force" if config.force else "")
    return _show(config.client, *_call(config.client, "DELETE", path))


def _call(
    client: AdminClientConfig, method: str, path: str, body: Any = None, wait_s: float = 0.0
) -> tuple[int, Answer]:
    """(status, answer) of one call; ConfigError if there is no answer."""
    request = Request(client.router.rstrip("/") + path, method=method)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    token = client.token
    if client.token_file is not None:
        token = read_secret(client.token_file, "token_file")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    # Straight there: a proxy of the environment knows nothing of loopback.
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=_tls(client)))
    try:
        with opener.open(request, timeout=client.timeout_s + wait_s + WAIT_MORE_S) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        try:
            return error.code, json.load(error)
        except ValueError:
            return error.code, {"error": f"the router answered {error.code} {error.reason}"}
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        text = f"no answer from {redact_url(client.router)}: {reason}"
        raise ConfigError(text, key="router") from None


def _tls(client: AdminClientConfig) -> ssl.SSLContext:
    context = client_context(client.tls_ca, "tls_ca")
    try:
        if client.tls_cert is not None:
            context.load_cert_chain(client.tls_cert, client.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise bad_setting("tls_cert", f"the TLS files cannot be used: {error}") from None
    return context


def _show(client: AdminClientConfig, code: int, answer: Answer) -> int:
    """Print an answer; the exit code."""
    if code >= 400:
        error = answer.get("error", f"status {code}")
        text = error["message"] if isinstance(error, dict) else error  # as OpenAI's port has it
        click.echo(f"dynamo-router: {text}", err=True)
        return 1
    if client.json:
        click.echo(json.dumps(answer))
        return 0
    click.echo(
        f"worker {answer['worker_id']} at {answer['address']}: {answer['state']}, "
        f"weight {answer['weight']:g}, {answer['in_flight']} requests in flight"
    )
    if "warning" in answer:
        click.echo(f"warning: {answer['warning']}", err=True)
    return 0
