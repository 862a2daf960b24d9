"""Settings: one order of precedence, and an error that names the key."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.process.settings import option, options_of, resolve


@dataclass(frozen=True)
class Inner:
    ratio: float = 0.5
    name: str | None = None


@dataclass(frozen=True)
class Group:
    depth: int = 3


@dataclass(frozen=True)
class Outer:
    port: int = 1
    fast: bool = False
    workers: tuple[str, ...] = option((), "Where to.", "--worker", "--engine")
    inner: Inner = field(default_factory=Inner)
    group: Group = field(default_factory=Group, metadata={"inline": True})
    mode: str = option("a", "How.", choices=("a", "b"), env=("OLD_MODE",))


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return path


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path, "port = 4\nfast = true\nmode = 'b'\n[inner]\nratio = 0.25\n")
    environ = {"DYNAMO_ROUTER_PORT": "3", "DYNAMO_ROUTER_FAST": "no"}
    resolved = resolve(Outer, {"port": 2}, environ=environ, file=file)
    assert resolved.config == Outer(port=2, fast=False, mode="b", inner=Inner(ratio=0.25))
    assert resolved.origins["port"] == "flag --port"
    assert resolved.origins["fast"] == "environment DYNAMO_ROUTER_FAST"
    assert resolved.origins["inner.ratio"] == f"file {file}"
    assert resolved.origins["inner.name"] == "default"
    assert ("inner.ratio", 0.25, f"file {file}") in resolved.describe()


def test_old_environment_name_and_lists_are_understood() -> None:
    environ = {"OLD_MODE": "b", "DYNAMO_ROUTER_WORKERS": "x:1,y:2", "DYNAMO_ROUTER_INNER_NAME": "n"}
    config = resolve(Outer, {}, environ=environ).config
    assert config == Outer(mode="b", workers=("x:1", "y:2"), inner=Inner(name="n"))


def test_an_inline_group_keeps_the_names_of_its_fields(tmp_path: Path) -> None:
    file = write(tmp_path, "depth = 5\n")
    assert resolve(Outer, {}, environ={}, file=file).config.group == Group(5)
    resolved = resolve(Outer, {"depth": 7}, environ={"DYNAMO_ROUTER_DEPTH": "6"})
    assert resolved.config.group == Group(7)
    assert ("depth", 7, "flag --depth") in resolved.describe()


def test_options_carry_every_name() -> None:
    specs = {spec.key: spec for spec in options_of(Outer)}
    assert list(specs) == ["port", "fast", "workers", "inner.ratio", "inner.name", "depth", "mode"]
    assert specs["workers"].flags == ("--worker", "--engine") and specs["workers"].repeated
    assert specs["mode"].flags == ("--mode",) and specs["mode"].help == "How."
    assert specs["inner.name"].optional and specs["inner.name"].kind is str
    assert specs["mode"].env == ("DYNAMO_ROUTER_MODE", "OLD_MODE")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 3", "prot: unknown key in .*; did you mean port?"),
        ("[inner]\nratoi = 3", "inner.ratoi: unknown key in .*; did you mean inner.ratio?"),
        ("port = 'x'", "port: 'x' .* is not a whole number"),
        ("port = 1.5", "port: 1.5 .* is not a whole number"),
        ("port = true", "port: True .* is not a whole number"),
        ("fast = 'maybe'", "fast: 'maybe' .* is not true or false"),
        ("mode = 'c'", "mode: 'c' .* is not one of a, b"),
        ("port = ", "settings.toml is not TOML"),
    ],
)
def test_bad_file_is_refused_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(Outer, {}, environ={}, file=write(tmp_path, text))


def test_unreadable_file_and_unknown_flag_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read .*missing.toml: No such file"):
        resolve(Outer, {}, environ={}, file=tmp_path / "missing.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot read .*binary: not UTF-8"):
        resolve(Outer, {}, environ={}, file=tmp_path / "binary")
    with pytest.raises(ConfigError, match="ports: unknown setting; did you mean port?"):
        resolve(Outer, {"ports": 1}, environ={})
    with pytest.raises(ConfigError, match="'zz' .environment DYNAMO_ROUTER_PORT. is not a whole"):
        resolve(Outer, {}, environ={"DYNAMO_ROUTER_PORT": "zz"})
