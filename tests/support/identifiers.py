"""The words that the identifiers of a source file are made of."""

import io
import re
import tokenize
from pathlib import Path

CYTHON_TEXT = re.compile(
    r"(?s)'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|#[^\n]*"
)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def identifiers(path: Path) -> set[str]:
    """The names in a file and the file's own; comments, strings and names of tests are left out."""
    text = path.read_text()
    if path.suffix in (".pyx", ".pxd"):
        found = set(re.findall(r"[A-Za-z_]\w*", CYTHON_TEXT.sub(" ", text)))
    else:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        found = {token.string for token in tokens if token.type == tokenize.NAME}
    return {name for name in found | {path.stem} if not name.startswith("test_")}


def words(identifier: str) -> list[str]:
    """`light_fuse`, `_LightFuse` and `LIGHT_FUSE` are made of `light` and `fuse`."""
    return [word.lower() for word in WORD.findall(identifier)]
