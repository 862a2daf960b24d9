"""Containerfile, compose file and systemd unit: what they run exists, and they give it little."""

import configparser
import re
import shlex
import tomllib

import click
import pytest
import yaml
from support.deploy.charts import DEPLOY
from support.places import ROOT

from dynamo_router.cli import COMMANDS, build_command
from dynamo_router.frontend.config import ServeFrontendConfig
from dynamo_router.process.settings import resolve

STEPS = [
    line
    for line in re.sub(r"\\\n", " ", (DEPLOY / "Containerfile").read_text()).splitlines()
    if line and not line.startswith("#")
]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OURS = {
    name: each
    for name, each in COMPOSE["services"].items()
    if each["image"].startswith("dynamo-router")
}


def is_understood(words: list[str]) -> None:
    """That a command line of ours parses."""
    name, *options = words
    command = build_command(name, COMMANDS[name])
    with click.Context(command, info_name=name) as context:
        command.parse_args(context, options)


def test_the_image_is_built_apart_from_what_runs() -> None:
    starts = [number for number, line in enumerate(STEPS) if line.startswith("FROM ")]
    assert len(starts) == 2
    final = STEPS[starts[1] :]
    assert not [line for line in final if re.search(r"\bRUN\b|apt|gcc|pip", line)]
    assert "USER 65532:65532" in final, "a number: runAsNonRoot is judged by it"
    assert 'ENTRYPOINT ["dynamo-router"]' in final
    assert not [
        line for line in STEPS if line.startswith(("ADD", "MAINTAINER")) or ":latest" in line
    ]
    assert all(line.split()[1].count(":") == 1 for line in STEPS if line.startswith("FROM"))


def test_the_image_installs_what_the_project_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (line,) = (line for line in STEPS if "pip install" in line)
    extras = re.search(r"'\.\[(.*)\]'", line)
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    version = re.search(r"ARG PYTHON=(\S+)", "\n".join(STEPS))
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


@pytest.mark.parametrize("name", OURS)
def test_a_service_of_the_compose_file_runs(name: str) -> None:
    service = OURS[name]
    is_understood(service["command"])
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    if name != "frontend":
        assert f"--advertise-host={name}" in service["command"]
    assert set(service["depends_on"]) <= COMPOSE["services"].keys()


def test_the_unit_checks_its_file_and_stops_in_time() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "dynamo-router.service").read_text())
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    check, *checks = shlex.split(service["ExecStartPre"])
    assert program == check and program.endswith("/dynamo-router")
    file = words[words.index("--config") + 1]
    assert checks == ["config", "--check", file]
    is_understood([words[0]])
    defaults = resolve(ServeFrontendConfig, {}, environ={}).values
    stopping = defaults["drain_timeout_s"] + defaults["lame_duck_s"]
    assert int(service["TimeoutStopSec"]) > stopping
