"""Which tokens end an answer of a model, by the files of its folder."""

from pathlib import Path
from typing import Any

import msgspec

from ...base.errors import UNREADABLE, ConfigError

_CONFIGS = ("generation_config.json", "config.json")  # these name ids
_NAMES, _TOKENIZER = "tokenizer_config.json", "tokenizer.json"  # the text, and its id


def end_tokens_of(folder: str | Path) -> frozenset[int]:
    """The ids at which engines or frontends end an answer: whatever a file of the folder names.

    Empty where none says. ConfigError if a file is there and is no JSON object.
    """
    path = Path(folder)
    found: set[int] = set()
    for name in _CONFIGS:
        ids = _read(path / name).get("eos_token_id")
        found.update(_ids(ids if isinstance(ids, list) else [ids]))
    text = _read(path / _NAMES).get("eos_token")
    if isinstance(text, dict):  # a token with its properties
        text = text.get("content")
    for token in _read(path / _TOKENIZER).get("added_tokens") or ():
        if text is not None and isinstance(token, dict) and token.get("content") == text:
            found.update(_ids([token.get("id")]))
    return frozenset(found)


def _ids(values: list[Any]) -> list[int]:
    """Those of them that can be a token's id."""
    return [each for each in values if type(each) is int and each >= 0]


def _read(path: Path) -> dict[str, Any]:
    """A file's object; empty if there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, *UNREADABLE) as error:
        raise ConfigError(f"model_path: cannot read {path}: {error}", key="model_path") from None
