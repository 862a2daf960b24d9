"""Options of the commands that serve: their groups, their two helps, packed ones, old names."""

import json
import re
from collections import Counter

import pytest
from click.testing import CliRunner, Result

from dynamo_router import cli
from dynamo_router.process.options import MOST_SHOWN, SettingsCommand
from dynamo_router.process.settings import GROUP, OptionSpec

ROOT = cli._build_root()
SERVING = ("serve", "frontend", "mocker", "config", "doctor", "worker vllm", "worker trtllm")


def run(*words: str, **environ: str) -> Result:
    return CliRunner(env=environ).invoke(ROOT, list(words))


def specs_of(command: str) -> list[OptionSpec]:
    entry = (cli.ENGINES if " " in command else cli.COMMANDS)[command.rpartition(" ")[2]]
    built = cli.build_command(command.rpartition(" ")[2], entry)
    assert isinstance(built, SettingsCommand)
    return list(built.specs)


def values(*words: str, **environ: str) -> tuple[dict[str, object], str]:
    """What `config` resolves, and what it writes to stderr."""
    result = run("config", "--json", *words, **environ)
    assert result.exit_code == 0, result.stderr
    tree = json.loads(result.stdout)
    return {key: leaf["value"] for key, leaf in tree.items()}, result.stderr


@pytest.mark.parametrize("command", SERVING)
def test_the_short_help_has_at_most_40_options_in_named_groups(command: str) -> None:
    text = run(*command.split(), "--help").output
    options = re.findall(r"(?m)^  (--[a-z][a-z-]*)", text)
    assert len(options) == len(set(options)) <= MOST_SHOWN == 40
    assert {"--help", "--help-all", "--config"} <= set(options)
    headings = re.findall(r"(?m)^(\S.*):$", text)
    assert len(headings) == len(set(headings)) > 4 and GROUP not in headings


@pytest.mark.parametrize("command", SERVING)
def test_every_setting_is_in_one_named_group_and_once_in_the_full_help(command: str) -> None:
    specs = specs_of(command)
    assert {spec.key for spec in specs if spec.group == GROUP} == set()
    text = run(*command.split(), "--help-all").output
    shown = Counter(re.findall(r"(?m)^ {2,4}(--[a-z][a-z0-9-]*|[a-z_]+(?==))", text))
    for spec in specs:
        assert shown[spec.flags[0] if spec.packed is None else spec.key] == 1, spec.key
    joined = re.sub(r"\s+", "", text)
    assert [spec.key for spec in specs if f"[env:{spec.env[0]}]" not in joined] == []


def test_a_command_with_few_options_shows_them_all() -> None:
    text = run("demo", "--help").output
    assert "--help-all" not in text
    assert set(re.findall(r"(?m)^  (--[a-z-]+)", text)) >= {
        spec.flags[0] for spec in specs_of("demo")
    }


def test_mock_engines_take_their_settings_as_key_and_value() -> None:
    settled, warnings = values(
        "--mockers",
        "2",
        "--mocker-options",
        "num_gpu_blocks=512",
        "--mocker-options",
        "hide-tiers=yes",
    )
    assert (settled["num_gpu_blocks"], settled["hide_tiers"]) == (512, True)
    assert settled["mockers"] == 2 and warnings == ""


def test_old_flags_of_mock_engines_still_count_with_one_warning() -> None:
    settled, warnings = values("--mockers", "2", "--num-gpu-blocks", "512", "--hide-tiers")
    assert (settled["num_gpu_blocks"], settled["hide_tiers"]) == (512, True)
    assert warnings.count("warning") == 1
    assert "--mocker-options num_gpu_blocks=512 --mocker-options hide_tiers=True" in warnings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("num_gpu_block=5",), "unknown key; did you mean num_gpu_blocks?"),
        (("xyzzy=5",), "unknown key; KEY is one of mocker_port, speedup_ratio"),
        (("mockers=5",), "unknown key"),
        (("num_gpu_blocks",), "is not KEY=VALUE"),
        (("num_gpu_blocks=",), "num_gpu_blocks: '' .flag --mocker-options. is not a whole number"),
        (("num_gpu_blocks=x",), "'x' .flag --mocker-options. is not a whole number"),
        (("num_gpu_blocks=5", "num-gpu-blocks=6"), "num_gpu_blocks is given twice"),
        (("num_gpu_blocks=0",), "num_gpu_blocks: 0 must be at least 1"),
        (("eviction=never",), "not one of"),
    ],
)
def test_a_bad_option_of_mock_engines_is_refused_by_name(
    words: tuple[str, ...], message: str
) -> None:
    given = [word for pair in words for word in ("--mocker-options", pair)]
    result = run("config", *given)
    assert re.search(message, str(result.exception)), result.exception


def test_a_setting_given_by_flag_and_as_key_is_refused() -> None:
    result = run("config", "--num-gpu-blocks", "5", "--mocker-options", "num_gpu_blocks=6")
    assert "given twice" in str(result.exception)


@pytest.mark.parametrize("command", [*cli.COMMANDS, "worker vllm"])
def test_environment_names_do_not_stutter_and_are_unique(command: str) -> None:
    specs = specs_of(command)
    names = [name for spec in specs for name in spec.env]
    assert len(names) == len(set(names))
    assert [spec.env[0] for spec in specs if re.search(r"(_[A-Z]+)\1(_|$)", spec.env[0])] == []


def test_an_old_environment_name_counts_with_a_warning() -> None:
    old = {"DYNAMO_ROUTER_ROUTER_ROUTER_TEMPERATURE": "0.5"}
    settled, warnings = values(**old)
    assert settled["router.router_temperature"] == 0.5
    assert "TEMPERATURE is an old name of DYNAMO_ROUTER_TEMPERATURE" in warnings
    settled, warnings = values(**old, DYNAMO_ROUTER_TEMPERATURE="0.25")
    assert settled["router.router_temperature"] == 0.25
    settled, warnings = values(DYNAMO_ROUTER_TEMPERATURE="0.25", DYN_ROUTER_TEMPERATURE="1")
    assert settled["router.router_temperature"] == 0.25 and warnings == ""


def test_a_misspelt_name_is_still_reported() -> None:
    _, warnings = values(DYNAMO_ROUTER_TEMPERATUR="1")
    assert "did you mean DYNAMO_ROUTER_TEMPERATURE?" in warnings
