"""The configuration file that `config --init` writes."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dynamo_router import cli
from dynamo_router.frontend.config import ServeFrontendConfig
from dynamo_router.process.settings import options_of, resolve

SPECS = options_of(ServeFrontendConfig)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)

    def call(*words: str, **environ: str) -> Result:
        return CliRunner(env=environ).invoke(cli._build_root(), ["config", *words])

    return call


def uncommented(text: str) -> str:
    """The file with every key in force."""
    return re.sub(r"(?m)^#(?=[a-z])", "", text)


def test_a_new_file_has_every_setting_and_sets_none(run, tmp_path: Path) -> None:
    assert run("--init").exit_code == 0
    path = tmp_path / "dynamo-router.toml"
    resolved = resolve(ServeFrontendConfig, {}, environ={}, file=path)
    assert set(resolved.origins.values()) == {"default"}
    text = path.read_text()
    path.write_text(uncommented(text))
    resolved = resolve(ServeFrontendConfig, {}, environ={}, file=path)
    assert set(resolved.origins.values()) == {f"file {path}"}
    assert resolved.config == ServeFrontendConfig()
    assert max(map(len, text.splitlines())) <= 100


def test_each_setting_has_its_help_unit_and_names(run) -> None:
    text = run("--init", "-").stdout
    joined = re.sub(r"\s*\n# |\s+", " ", text)
    for spec in SPECS:
        assert re.sub(r"\s+", " ", spec.help).strip() in joined, spec.key
        assert f"{spec.env[0]})" in joined
    entry = text[: text.index("#drain_timeout_s = 10.0")].rpartition("\n\n")[2]
    assert "In seconds." in entry and "--drain-timeout-s" in entry
    assert "One of nats, zmq." in text


def test_what_is_given_is_in_force(run, tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text("[router]\nblock_size = 32\n")
    words = ("--init", "new.toml", "--config", "old.toml", "--worker", "grpc://a:1?id=1", "--port")
    result = run(*words, "9000", "--mocker-options", "num_gpu_blocks=7", DYNAMO_ROUTER_HOST="h")
    assert result.exit_code == 0 and "wrote new.toml" in result.stdout
    tree = tomllib.loads((tmp_path / "new.toml").read_text())
    given = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    assert given == {"port": 9000, "workers": ["grpc://a:1?id=1"], "num_gpu_blocks": 7}
    assert tree["router"] == {"block_size": 32, "admission": {}}
    settled = json.loads(run("--config", "new.toml", "--json").stdout)
    assert settled["port"] == {"value": 9000, "origin": "file new.toml"}


def test_strange_characters_survive(run, tmp_path: Path) -> None:
    name = 'a "b" \\ c\tü\n\x01'
    assert run("--init", "x.toml", "--model-id", name).exit_code == 0
    assert tomllib.loads((tmp_path / "x.toml").read_text())["model_id"] == name


@pytest.mark.parametrize("kind", ["file", "folder", "dangling", "nowhere"])
def test_nothing_is_overwritten(run, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "there"
    if kind == "file":
        path.write_text("port = 1\n")
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path = tmp_path / "no" / "folder"
    result = run("--init", str(path))
    assert re.search("not overwritten|cannot write", str(result.exception))
    assert kind != "file" or path.read_text() == "port = 1\n"
    assert not (tmp_path / "elsewhere").exists()


def test_a_bad_setting_writes_no_file(run, tmp_path: Path) -> None:
    assert "port" in str(run("--init", "--port", "99999").exception)
    assert list(tmp_path.iterdir()) == []
