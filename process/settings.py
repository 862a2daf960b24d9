"""Settings: a frozen dataclass as flags, environment names and file keys, resolved in one place.

The command line builds its options from `options_of`; every command then calls `resolve`.
A field may carry metadata: `help`, `flag` (its long name), `aliases` (more flags), `env` (more
environment names), `env_key` (what its own is made of, if not its key), `choices`, `positional` (an
argument, not an option), `url` (credentials in it are not shown), `short` (the short help has it),
`group` (the heading it is under; not given: `GROUP` of the class that declares the field). A field
whose type is a dataclass is a section of its own; an `inline` one groups fields that keep the names
they would have without it. `packed` is an option of the command line that takes all settings of a
section as KEY=VALUE; a field with `packed=None` keeps a flag of its own.
"""

import dataclasses
import inspect
import math
import os
import re
import types
import typing
from collections.abc import Container, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from ..base.errors import ConfigError
from ..base.urls import redact_text, redact_url
from .environment import is_service_link

ENV_PREFIX = "DYNAMO_ROUTER_"
LARGEST = 2**64 - 1
"""No whole number of a setting is larger,"""
MOST = 2**31 - 1
"""and none is that counts something, unless its option says `most`."""
SHORTEST_S = 0.01
"""No time-out or interval is shorter: to look so often would only keep the process busy."""
T = TypeVar("T")
GROUP = "Options"
"""The heading of settings whose class has none."""
UNITS = {
    "_s": "seconds",
    "_secs": "seconds",
    "_ms": "milliseconds",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_blocks": "blocks",
    "_gbps": "gigabytes a second",
}
"""Units by the ends of settings' names."""
_STUTTER = re.compile(r"((?:_[A-Z0-9]+)+?)\1+(?=_|$)")
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


@dataclasses.dataclass(frozen=True)
class OptionSpec:
    """One leaf of a settings dataclass, under every name it answers to."""

    key: str  # dotted: "router.temperature"
    flags: tuple[str, ...]  # without the --no- forms
    env: tuple[str, ...]
    kind: type  # int, float, bool, str or Path
    optional: bool  # None is a value
    repeated: bool  # tuple[kind, ...]
    default: Any
    help: str
    choices: tuple[str, ...] | None
    positional: bool
    url: bool  # its value may hold credentials, which are not shown
    most: float = math.inf  # no number is larger, nor its opposite smaller
    group: str = GROUP
    short: bool = False  # the short help has it
    packed: str | None = None  # the option that takes it as KEY=VALUE; its flags are old names
    old_env: tuple[str, ...] = ()  # those of `env` that have a better name

    @property
    def name(self) -> str:
        """An identifier unique among the options of one command."""
        return self.key.replace(".", "__")

    @property
    def section(self) -> str:
        """The table of a configuration file that has it; "" is the top of the file."""
        return self.key.rpartition(".")[0]

    @property
    def unit(self) -> str | None:
        """What a number of it counts, where its name says so."""
        if self.kind not in (int, float):
            return None
        return next((unit for end, unit in UNITS.items() if self.key.endswith(end)), None)


@dataclasses.dataclass(frozen=True)
class Resolved(Generic[T]):
    """A settings object, and by key each value and its origin: flag, environment, file, default."""

    config: T
    values: Mapping[str, Any]
    origins: Mapping[str, str]

    def describe(self) -> list[tuple[str, Any, str]]:
        """(dotted key, value, origin) of every leaf, in declaration order, without secrets."""
        urls = {spec.key for spec in options_of(type(self.config)) if spec.url}
        return [
            (key, _redacted(self.values[key]) if key in urls else self.values[key], origin)
            for key, origin in self.origins.items()
        ]


class SettingsSource(Generic[T]):
    """Where the settings of a command come from, to be read more than once: flags and environment
    as they were at the start, and a file as it is then.

    `current` is what was read first; a caller that reads again and applies the result sets it.
    """

    def __init__(
        self, cls: type[T], flags: Mapping[str, Any], file: str | None, env_prefix: str = ENV_PREFIX
    ) -> None:
        self._cls, self._flags, self._file, self._env_prefix = cls, flags, file, env_prefix
        self._environ = dict(os.environ)
        self.current = self.read()

    def read(self) -> Resolved[T]:
        """The settings now; ConfigError as `resolve` has it."""
        return resolve(
            self._cls,
            self._flags,
            environ=self._environ,
            file=self._file,
            env_prefix=self._env_prefix,
        )


def option(default: Any, help: str, flag: str | None = None, *aliases: str, **more: Any) -> Any:
    """A field of a settings dataclass: its default, its help, its flag and other names of that.

    `flag` not given: `--` and the field's name. `more` is any other metadata named above.
    """
    metadata = {"help": help, "aliases": aliases, **more}
    if flag is not None:
        metadata["flag"] = flag
    return dataclasses.field(default=default, metadata=metadata)


def bad_setting(key: str, text: str) -> ConfigError:
    """The error for one setting, its key leading the message."""
    return ConfigError(redact_text(f"{key}: {text}"), key=key)


def is_finite(value: float) -> bool:
    """Whether a number is neither infinite, nor nan, nor a whole one that no float can be."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def options_of(cls: type, env_prefix: str = ENV_PREFIX) -> list[OptionSpec]:
    """The leaves of a settings dataclass and of the sections inside it, in declaration order."""
    return list(_leaves(cls, "", env_prefix, None))


@cache
def _leaves(cls: type, prefix: str, env_prefix: str, packed: str | None) -> tuple[OptionSpec, ...]:
    hints = _hints(cls)
    specs: list[OptionSpec] = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue  # not to be set: a class that derives from another may have no use for it
        hint, key, meta = hints[field.name], prefix + field.name, field.metadata
        option_for_all = meta.get("packed", packed)
        if dataclasses.is_dataclass(hint):
            inner = prefix if meta.get("inline") else key + "."
            specs += _leaves(typing.cast(type, hint), inner, env_prefix, option_for_all)
            continue
        kind, optional, repeated = _shape(hint)
        env, old_env = _env_names(env_prefix, key, meta.get("env_key", key))
        flag = meta.get("flag", "--" + field.name.replace("_", "-"))
        specs.append(
            OptionSpec(
                key=key,
                flags=(flag, *meta.get("aliases", ())),
                env=(env, *old_env, *meta.get("env", ())),
                kind=kind,
                optional=optional,
                repeated=repeated,
                default=_default(field),
                help=meta.get("help", ""),
                choices=meta.get("choices"),
                positional=meta.get("positional", False),
                url=meta.get("url", False),
                most=meta.get("most", _most_of(field.name, kind)),
                group=meta.get("group", _group_of(cls, field.name)),
                short=meta.get("short", False),
                packed=option_for_all,
                old_env=old_env,
            )
        )
    return tuple(specs)


_hints = cache(typing.get_type_hints)


def old_names_used(
    specs: Iterable[OptionSpec], environ: Mapping[str, str], flags: Mapping[str, Any]
) -> list[str]:
    """A sentence on the names given that still work and have a better one. `flags` are those given
    by their own name, by the key of the setting."""
    specs = list(specs)
    lines = [
        f"{old} is an old name of {spec.env[0]}"
        for spec in specs
        for old in spec.old_env
        if _is_given(environ.get(old))
    ]
    packed = [spec for spec in specs if spec.packed is not None and spec.key in flags]
    if packed:
        old = ", ".join(spec.flags[0] for spec in packed)
        new = " ".join(f"{spec.packed} {spec.key}={flags[spec.key]}" for spec in packed)
        lines.append(f"old flags ({old}): write {new}")
    return lines


def unpack(
    option_name: str, pairs: Iterable[str], specs: Iterable[OptionSpec], flags: Container[str]
) -> dict[str, str]:
    """The values in KEY=VALUE by key, of the settings that this option takes; ConfigError on
    another key, or on one that comes twice. `flags`: keys given by flags of their own."""
    known = {spec.key: spec for spec in specs if spec.packed == option_name}
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in known:
            hint = nearest(key, known) or f"; KEY is one of {', '.join(known)}"
            wanted = "is not KEY=VALUE" if not equals else "has an unknown key"
            raise bad_setting(option_name, f"{pair!r} {wanted}{hint}")
        if key in values or key in flags:
            raise bad_setting(option_name, f"{key} is given twice")
        values[key] = value
    return values


def _env_names(prefix: str, key: str, env_key: str) -> tuple[str, tuple[str, ...]]:
    """The environment name of a key, in which no words come twice in a row, and the old one."""
    old, new = (prefix + each.replace(".", "_").upper() for each in (key, env_key))
    new = _STUTTER.sub(r"\1", f"_{new}")[1:]
    return new, () if new == old else (old,)


def _group_of(cls: type, name: str) -> str:
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    group: str = getattr(owner, "GROUP", GROUP)
    return group


def values_of(config: Any, prefix: str = "") -> dict[str, Any]:
    """The value of every leaf of a settings object, by the keys that `options_of` gives them."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value, key = getattr(config, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            values |= values_of(value, prefix if field.metadata.get("inline") else key + ".")
        else:
            values[key] = value
    return values


def with_value(config: T, key: str, value: Any) -> T:
    """A settings object with another value of one leaf, by its key. KeyError if it has none."""
    whole: Any = config
    for field in dataclasses.fields(whole):
        if field.name == key:
            return cast(T, dataclasses.replace(whole, **{key: value}))
        part = getattr(config, field.name)
        prefix = "" if field.metadata.get("inline") else field.name + "."
        rest = key.removeprefix(prefix)
        if dataclasses.is_dataclass(part) and key.startswith(prefix) and rest in values_of(part):
            changed = {field.name: with_value(part, rest, value)}
            return cast(T, dataclasses.replace(whole, **changed))
    raise KeyError(key)


def resolve(
    cls: type[T],
    flags: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    env_prefix: str = ENV_PREFIX,
) -> Resolved[T]:
    """Settle every value: flag > environment > file > default.

    `flags` maps dotted keys to values given on the command line (absent where not given);
    `file` is a TOML file whose tables are the sections. Raises ConfigError, which names the key
    and where the value came from, on an unknown key, an unreadable file or a bad value.
    """
    environ = os.environ if environ is None else environ
    specs = {spec.key: spec for spec in options_of(cls, env_prefix=env_prefix)}
    in_file = _read_file(Path(file), specs) if file is not None else {}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, spec in specs.items():
        env_name = next((name for name in spec.env if _is_given(environ.get(name))), None)
        if key in flags:
            value, origin = flags[key], f"flag {spec.packed or spec.flags[0]}"
        elif env_name is not None:
            value, origin = environ[env_name], f"environment {env_name}"
        elif key in in_file:
            value, origin = in_file[key], f"file {file}"
        else:
            value, origin = spec.default, "default"
        values[key] = value if origin == "default" else _convert(spec, value, origin)
        origins[key] = origin
    _refuse_unknown_flags(flags, specs)
    return Resolved(typing.cast(T, _build(cls, values, "")), values, origins)


def _is_given(value: str | None) -> bool:
    return bool(value) and not is_service_link(value or "")


def _build(cls: type, values: Mapping[str, Any], prefix: str) -> Any:
    hints = _hints(cls)
    arguments = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue  # not to be set: a class that derives from another may have no use for it
        hint, key = hints[field.name], prefix + field.name
        if dataclasses.is_dataclass(hint):
            inner = prefix if field.metadata.get("inline") else key + "."
            arguments[field.name] = _build(typing.cast(type, hint), values, inner)
        else:
            arguments[field.name] = values[key]
    return cls(**arguments)


def _shape(hint: Any) -> tuple[type, bool, bool]:
    """(element type, may be None, is a tuple of it) of a field's annotation."""
    optional = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        optional, hint = len(inner) < len(typing.get_args(hint)), inner[0]
    if typing.get_origin(hint) is tuple:
        return typing.get_args(hint)[0], optional, True
    if typing.get_origin(hint) is typing.Literal:
        return str, optional, False
    return hint, optional, False


def _most_of(name: str, kind: type) -> float:
    """The largest number that a setting can be: bytes and seeds may be as large as numbers are."""
    if kind is not int:
        return math.inf
    return LARGEST if name.endswith(("bytes", "seed")) else MOST


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None


def _convert(spec: OptionSpec, value: Any, origin: str) -> Any:
    if spec.repeated:
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(_convert_one(spec, part, origin) for part in parts if part != "")
    if value is None or (spec.optional and isinstance(value, str) and value.lower() == "none"):
        return None
    return _convert_one(spec, value, origin)


def _convert_one(spec: OptionSpec, value: Any, origin: str) -> Any:
    try:
        converted = _as_bool(value) if spec.kind is bool else _as_kind(spec.kind, value)
    except (TypeError, ValueError, OverflowError):
        wanted = {"int": "a whole number", "float": "a number", "bool": "true or false"}
        expected = wanted.get(spec.kind.__name__, f"a {spec.kind.__name__}")
        raise bad_setting(spec.key, f"{value!r} ({origin}) is not {expected}") from None
    if spec.kind is int and abs(converted) > spec.most:
        bounds = f"from {-spec.most} to {spec.most}" if converted < 0 else f"at most {spec.most}"
        raise bad_setting(spec.key, f"{value!r} ({origin}) is not {bounds}")
    if spec.choices is not None and converted not in spec.choices:
        raise bad_setting(spec.key, f"{value!r} ({origin}) is not one of {', '.join(spec.choices)}")
    return converted


def _as_kind(kind: type, value: Any) -> Any:
    if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
        raise TypeError
    if kind is int and isinstance(value, float):
        raise TypeError
    converted: Any = kind(value)
    if kind is int and not -LARGEST <= converted <= LARGEST:
        raise OverflowError
    return converted


def _as_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in _TRUE | _FALSE:
        raise ValueError
    return word in _TRUE


def _read_file(path: Path, specs: Mapping[str, OptionSpec]) -> dict[str, Any]:
    import tomllib

    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise bad_setting("config", f"cannot read {path}: {reason}") from None
    except tomllib.TOMLDecodeError as error:
        raise bad_setting("config", f"{path} is not TOML: {error}") from None
    flat: dict[str, Any] = {}
    _flatten(tree, "", flat)
    for key in flat:
        if key not in specs:
            raise bad_setting(key, f"unknown key in {path}{nearest(key, specs)}")
    return flat


def _flatten(tree: Mapping[str, Any], prefix: str, into: dict[str, Any]) -> None:
    for key, value in tree.items():
        name = prefix + key.replace("-", "_")
        if isinstance(value, dict):
            _flatten(value, name + ".", into)
        else:
            into[name] = value


def _refuse_unknown_flags(flags: Mapping[str, Any], specs: Mapping[str, OptionSpec]) -> None:
    for key in flags:
        if key not in specs:
            raise bad_setting(key, f"unknown setting{nearest(key, specs)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Which of those known was perhaps meant, to end a complaint with; "" if none is like it."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _redacted(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(redact_url, value))
    return redact_url(value) if isinstance(value, str) else value
