"""Doorbell: short notifications between engines of one host, over datagrams of a Unix socket."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...base.errors import UNREADABLE, ConfigError
from .interface import Notification
from .tickets import TransferError

BELL = ".bell"
MOST_BYTES = 4096
"""Of one notification; longer ones are of no engine of ours."""
MOST_PENDING = 1024
"""Notifications that wait until their readers have taken earlier ones: a socket keeps some ten."""
_RETRY_S = 0.001
_MOST_A_TURN = 64


class _Rung(msgspec.Struct, frozen=True, array_like=True):
    engine_id: str
    notification: Notification


class Doorbell:
    """One engine's socket in a folder that engines share, from its making until `close`."""

    def __init__(self, folder: Path, engine_id: str) -> None:
        """ConfigError if there can be no socket."""
        self.path = folder / f"{engine_id}{BELL}"
        self._engine_id = engine_id
        self._on_notification: Callable[[str, Notification], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[Path, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.refused = 0
        """datagrams that were no notifications"""
        try:
            self._socket.setblocking(False)
            self._socket.bind(str(self.path))
        except OSError as error:
            self._socket.close()
            text = f"transfer_folder: no socket at {self.path}: {error.strerror or error}"
            raise ConfigError(text, key="transfer_folder") from None
        self._loop.add_reader(self._socket.fileno(), self._read)

    def listen(self, on_notification: Callable[[str, Notification], None]) -> None:
        self._on_notification = on_notification

    def ring(self, path: Path, notification: Notification) -> None:
        """Send one, now or once its reader has capacity. TransferError: dead if no engine listens
        there, unavailable if too many wait."""
        body = msgspec.msgpack.encode(_Rung(self._engine_id, notification))
        if self._pending or not self._send(path, body):
            if len(self._pending) >= MOST_PENDING:
                raise TransferError(f"engine {path.stem} reads no notifications", "unavailable")
            self._pending.append((path, body))
            if self._timer is None:
                self._timer = self._loop.call_later(_RETRY_S, self._send_pending)

    def close(self) -> None:
        """Idempotent."""
        if self._socket.fileno() < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _send(self, path: Path, body: bytes) -> bool:
        """False if its reader has no capacity now."""
        try:
            self._socket.sendto(body, str(path))
        except BlockingIOError:
            return False
        except (FileNotFoundError, ConnectionRefusedError):
            raise TransferError(f"no engine listens at {path.name}", "dead") from None
        except OSError as error:
            text = f"notification to {path.name}: {error.strerror or error}"
            raise TransferError(text, "unavailable") from None
        return True

    def _send_pending(self) -> None:
        self._timer = None
        waiting = list(self._pending)
        self._pending.clear()
        full: set[Path] = set()
        for path, body in waiting:
            try:
                if path in full or not self._send(path, body):
                    full.add(path)
                    self._pending.append((path, body))
            except TransferError:
                continue  # its reader has gone: what was written is of no use to it
        if self._pending:
            self._timer = self._loop.call_later(_RETRY_S, self._send_pending)

    def _read(self) -> None:
        for _ in range(_MOST_A_TURN):
            try:
                body = self._socket.recv(MOST_BYTES + 1)
            except (BlockingIOError, InterruptedError):
                return
            try:
                rung = msgspec.msgpack.decode(body, type=_Rung)
            except (*UNREADABLE, msgspec.ValidationError):
                self.refused += 1
                continue
            if self._on_notification is not None:
                self._on_notification(rung.engine_id, rung.notification)


def is_listening(path: Path) -> bool:
    """Whether an engine that lives has its socket there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return os.path.exists(path)
