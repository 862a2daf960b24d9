"""The words that the identifiers of a source file are made of."""

import re
from pathlib import Path

TEXT = re.compile(
    r"(?s)'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|#[^\n]*"
)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def identifiers(path: Path) -> set[str]:
    """The names in a file and the file's own; comments, strings and names of tests are left out."""
    found = set(re.findall(r"[A-Za-z_]\w*", TEXT.sub(" ", path.read_text())))
    return {name for name in found | {path.stem} if not name.startswith("test_")}


def words(identifier: str) -> list[str]:
    """`light_fuse`, `_LightFuse` and `LIGHT_FUSE` are made of `light` and `fuse`."""
    return [word.lower() for word in WORD.findall(identifier)]
