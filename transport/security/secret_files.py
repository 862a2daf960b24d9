"""Files that hold a secret: read, with a warning if others may read them too."""

import os
import stat

import structlog

from ...base.errors import ConfigError

MAX_BYTES = 1 << 20

log = structlog.get_logger(__name__)


def read_file(path: str, key: str) -> bytes:
    """The contents of a small file; ConfigError, naming the setting, if it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}", key=key) from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{key}: {path} is larger than {MAX_BYTES} bytes", key=key)
    return data


def read_secret(path: str, key: str) -> str:
    """The one line of a file that is a secret, warning if others may read it."""
    warn_if_shared(path)
    try:
        text = read_file(path, key).decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: {path} is not UTF-8", key=key) from None
    if not text or len(text.splitlines()) != 1:
        raise ConfigError(f"{key}: {path} must hold one line, the secret", key=key)
    return text


def warn_if_shared(path: str) -> None:
    """Log a warning if a secret file may be read by users other than its owner."""
    if (mode := shared_mode(path)) is not None:
        log.warning("a secret file can be read by others: chmod 600", file=path, mode=f"{mode:04o}")


def shared_mode(path: str) -> int | None:
    """The permission bits of a file that its group or others may read; None if only its owner may,
    or where permissions mean nothing."""
    if os.name != "posix":
        return None
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return None
    return mode if mode & 0o077 else None
