"""EngineKey: the key that engines which speak OpenAI's HTTP ask for (their --api-key)."""

import os
import re

from ...base.errors import ConfigError
from .secret_files import read_secret
from .watched_files import WatchedFiles

SETTING = "worker_api_key_file"
VARIABLE = "DYNAMO_ROUTER_WORKER_API_KEY"
"""The key itself, where there is no file."""
_KEY = re.compile(r"[\x21-\x7e]+")  # what a header can carry, without blanks


class EngineKey:
    """`value` is the key as it is now. ConfigError, without the key in it, if it cannot be used.

    `files`: what it is read from, and read again; None if it is in the environment.
    """

    def __init__(self, path: str | None) -> None:
        self.files: WatchedFiles[str] | None = None
        if path is None:
            self._value = _checked(os.environ[VARIABLE].strip(), VARIABLE)
        else:
            self.files = WatchedFiles(
                "key of engines", (path,), lambda: _checked(read_secret(path, SETTING), path)
            )

    @property
    def value(self) -> str:
        return self._value if self.files is None else self.files.value

    def hidden_in(self, text: bytes) -> bytes:
        """An engine's words without the key, which some engines repeat when it is wrong."""
        return text.replace(self.value.encode(), b"***")


def read_engine_key(path: str | None) -> EngineKey | None:
    """The key of a file, or of the environment; None if neither has one."""
    if path is None and not os.environ.get(VARIABLE, "").strip():
        return None
    return EngineKey(path)


def _checked(key: str, where: str) -> str:
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{where}: the key has characters that no header has", key=SETTING)
    return key
