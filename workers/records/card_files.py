"""The files of a model that a card names: named with their checksums, found and checked again."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3

from ...base.errors import ConfigError
from .card_checksum import IN_ORDER, named_files

TOKENIZER = "tokenizer"
LARGEST_FILE = 1 << 30
_PREFIX = "blake3:"
_FILES = {
    "model_info": ("hf_config_json", "config.json"),
    TOKENIZER: ("hf_tokenizer_json", "tokenizer.json"),
    "prompt_formatter": ("hf_tokenizer_config_json", "tokenizer_config.json"),
    "gen_config": ("hf_generation_config_json", "generation_config.json"),
}
_REQUIRED = ("model_info", TOKENIZER)


@dataclass(frozen=True, slots=True)
class CardFile:
    """One file: what it is for, and where it is to be found."""

    part: str
    """the card's field: `tokenizer`, ..."""
    path: str
    checksum: str
    """`blake3:` and 64 hexadecimal digits; empty where the worker could not make one"""
    size: int | None = None


class WrongFileError(ValueError):
    """A file is not there, or is another one than the card says."""


def files_of(card: Mapping[str, Any]) -> tuple[CardFile, ...]:
    """The files that a card names, in the order of its checksum. What is no file is left out."""
    return tuple(
        CardFile(part, file["path"], _text(file.get("checksum")), _size(file.get("size")))
        for part in IN_ORDER
        for file in named_files(card.get(part))
        if isinstance(file.get("path"), str)
    )


def model_files(folder: str | Path) -> dict[str, Any]:
    """The part of a card that names the files of a model's folder, with their checksums.

    A reader of the card must be able to read the files. ConfigError without a tokenizer.
    """
    path = Path(folder).absolute()
    card: dict[str, Any] = {"source_path": str(path)}
    for key, (kind, name) in _FILES.items():
        try:
            data = (path / name).read_bytes()
        except OSError as error:
            if key in _REQUIRED:
                text = f"model_path: cannot read {path / name}: {error.strerror}"
                raise ConfigError(text, key="model_path") from None
            continue
        file = {"path": str(path / name), "size": len(data), "checksum": _checksum(data)}
        card[key] = {kind: file}
    return card


def checked_folder(files: tuple[CardFile, ...], other: Path | None = None) -> Path:
    """The folder that holds the files of a card, each as the card says. Reads them: not for the
    event loop.

    `other` is where those are looked for that are not at their own path. WrongFileError, with what
    is wrong, if there is no tokenizer, or a file cannot be had or is another one.
    """
    tokenizer = next((file for file in files if file.part == TOKENIZER), None)
    if tokenizer is None:
        raise WrongFileError("the card names no tokenizer")
    if Path(tokenizer.path).name != _FILES[TOKENIZER][1]:
        raise WrongFileError(f"its tokenizer {tokenizer.path} is of a kind that is not read")
    folder = Path(tokenizer.path).parent
    if other is not None and not Path(tokenizer.path).is_file():
        folder = other
    for file in files:
        _check(file, folder / Path(file.path).name)
    return folder


def _check(file: CardFile, path: Path) -> None:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise WrongFileError(f"{path} is larger than a model's file can be")
        data = path.read_bytes()
    except OSError as error:
        raise WrongFileError(f"its {file.part} {path} cannot be read: {error.strerror}") from None
    if file.size not in (None, len(data)):
        raise WrongFileError(f"{path} has {len(data)} bytes, in the card it has {file.size}")
    if not file.checksum:
        return
    if not file.checksum.startswith(_PREFIX):
        raise WrongFileError(f"the checksum of {path} is no blake3")
    if _checksum(data) != file.checksum:
        raise WrongFileError(f"{path} has another checksum than in the card")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _checksum(data: bytes) -> str:
    return f"{_PREFIX}{blake3(data).hexdigest()}"
