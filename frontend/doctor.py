"""dynamo-router doctor: what is wrong with a deployment of `serve`, and what to do about it.

0: nothing. 1: something is; warnings alone are nothing.
"""

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import click
import uvloop

from ..base.errors import ConfigError
from ..process.off_loop import OffLoop
from ..process.settings import SettingsSource
from ..server.config_check import vain_settings
from ..server.doctor import (
    FAILED,
    OK,
    WARNING,
    Finding,
    check_machine,
    check_ports,
    check_servers,
    check_workers,
)
from .config import DoctorConfig

_MARKS = {OK: "ok  ", WARNING: "WARN", FAILED: "FAIL"}


def run(config: DoctorConfig, source: SettingsSource[Any] | None = None) -> int:
    """The command."""
    output = config.observability.open_log()
    output.change("critical", "text")  # what is wrong is in the findings
    try:
        findings = uvloop.run(examine(config, source))
    finally:
        output.close()
    failed = any(finding.state == FAILED for finding in findings)
    if config.json:
        rows = [
            vars(each) if each.state != OK else {**vars(each), "advice": ""} for each in findings
        ]
        click.echo(json.dumps({"ok": not failed, "findings": rows}, indent=2))
    else:
        for finding in findings:
            click.echo(f"{_MARKS[finding.state]}  {finding.check}: {finding.text}")
            if finding.state != OK and finding.advice:
                click.echo(f"      {finding.advice}")
    return int(failed)


async def examine(config: DoctorConfig, source: SettingsSource[Any] | None = None) -> list[Finding]:
    """All checks. A ConfigError of one is its finding."""
    findings = list(check_machine(config))
    for text in vain_settings(source.current) if source is not None else ():
        findings.append(Finding("settings", WARNING, text, "remove it, or what turns it off"))
    findings += _checked("model", lambda: check_model(config))
    ports = {
        "http_frontend": config.frontend.http_frontend,
        "ext_proc_port": config.envoy.ext_proc_port,
        "grpc_health_port": config.envoy.grpc_health_port,
    }
    findings += await check_ports(config, ports)
    for name, check in (
        ("servers", check_servers(config)),
        ("workers", check_workers(config, config.wait_s)),
    ):
        try:
            findings += await check
        except ConfigError as error:
            findings.append(Finding(name, FAILED, str(error), "correct this setting"))
    return findings


def check_model(config: DoctorConfig) -> list[Finding]:
    """The model's files, where OpenAI clients are served. ConfigError if they cannot be used."""
    frontend = config.frontend
    if frontend.http_frontend is None:
        return []
    from .token_cache import model_text

    with closing(OffLoop()) as off_loop:
        size = model_text(frontend, off_loop).vocab_size
    if frontend.model_path is None and not config.mock_engines.mockers:
        text = "the small tokenizer that comes along, which no real model has"
        advice = "give --model-path with the model's tokenizer.json and chat template"
        return [Finding("model", WARNING, text, advice)]
    where = frontend.model_path or "the tokenizer that comes along"
    return [Finding("model", OK, f"{where}: tokenizer of {size} tokens")]


def _checked(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except ConfigError as error:
        return [Finding(name, FAILED, str(error), "correct this setting")]
