"""The configuration file as `config --init` writes it: every setting with its help, its unit, its
names and its default. What is not given is commented out, `#` right before the key."""

import json
import textwrap
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from .settings import OptionSpec, bad_setting

_WIDTH = 96
_HEAD = """\
# Settings of `dynamo-router serve`, read with --config FILE. Remove the # before a key to set it.
# A flag goes before its environment variable, that before this file, this file before the default.
"""


def config_file(specs: Iterable[OptionSpec], given: Mapping[str, Any]) -> str:
    """The text of a file with these settings, in which those that are given are in force."""
    parts = [_HEAD]
    # TOML has the top of the file first; after that each section is a table of its own.
    ordered = sorted(specs, key=lambda spec: spec.section != "")
    groups: dict[tuple[str, str], list[OptionSpec]] = {}
    for spec in ordered:
        groups.setdefault((spec.section, spec.group), []).append(spec)
    for section, headings in groupby(sorted(groups, key=_first(groups)), key=lambda key: key[0]):
        for index, key in enumerate(headings):
            parts.append(f"\n# {key[1]} {'-' * (_WIDTH - len(key[1]) - 3)}\n")
            if section and index == 0:
                parts.append(f"[{section}]\n")
            parts += [_entry(spec, given) for spec in groups[key]]
    return "".join(parts)


def write_new(path: str, text: str) -> None:
    """Write a file that is not there yet. ConfigError if it is, or cannot be written."""
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise bad_setting("init", f"{path} exists, and is not overwritten") from None
    except OSError as error:
        raise bad_setting("init", f"cannot write {path}: {error.strerror}") from None


def _first(groups: Mapping[tuple[str, str], Any]) -> Any:
    """A key that keeps the sections in the order in which they come, and groups within."""
    rank = {section: i for i, (section, _) in reversed(list(enumerate(groups)))}
    return lambda key: rank[key[0]]


def _entry(spec: OptionSpec, given: Mapping[str, Any]) -> str:
    facts = [f"In {spec.unit}."] if spec.unit else []
    if spec.choices:
        facts.append(f"One of {', '.join(spec.choices)}.")
    if spec.optional:
        facts.append('"none": not given.')
    flag = f"{spec.packed} {spec.key}=..." if spec.packed else spec.flags[0]
    text = " ".join([spec.help, *facts, f"({flag}; {spec.env[0]})"])
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
    )
    mark, value = ("", given[spec.key]) if spec.key in given else ("#", spec.default)
    name = spec.key.rpartition(".")[2]
    return "\n" + "\n".join(lines) + f"\n{mark}{name} = {_toml(value)}\n"


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
