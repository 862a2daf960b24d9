"""Keys as file names: every byte outside A-Z, a-z, 0-9 as %XX, so that a key is one name."""

import re
from urllib.parse import unquote_to_bytes

TEMPORARY = ".tmp_"
"""How the names of files begin that are still being written."""
_OUTSIDE = re.compile(rb"[^A-Za-z0-9]")
_OUTSIDE_BUCKET = re.compile(rb"[^A-Za-z0-9_-]")
_ENCODED = re.compile(r"(?:[A-Za-z0-9]|%[0-9A-F]{2})+")


def name_of_key(key: str) -> str:
    return _escape(_OUTSIDE, key)


def key_of_name(name: str) -> str | None:
    """The key that a file stands for; None if it stands for none."""
    if not _ENCODED.fullmatch(name):
        return None
    try:
        return unquote_to_bytes(name).decode()
    except UnicodeDecodeError:
        return None


def folder_of_bucket(bucket: str) -> str:
    """The path of a bucket below the root: its segments, each a name that is no `..`."""
    return "/".join(_escape(_OUTSIDE_BUCKET, part) or "%" for part in bucket.split("/"))


def _escape(outside: re.Pattern[bytes], text: str) -> str:
    return outside.sub(lambda found: b"%%%02X" % found[0][0], text.encode()).decode()
