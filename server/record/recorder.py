"""Recorder: what became of requests, written by a thread of its own, and dropped rather than waited
for. PoolRecord: the observer of one pool that feeds it."""

import asyncio
import os
import re
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from ...base.clock import Clock
from ...base.errors import StatusCode
from ...base.request_record import current_record
from ...process.settings import bad_setting
from ...router.kv_router import KvRouter
from ..dispatch import DispatchObserver, OtherCall, Request
from ..record_format import Fleet
from .lines import Salt, blocks_to_hash, new_header
from .record_file import RecordFile, Write
from .tail import RecordTail

OUTCOMES = ("written", "queue_full", "disk_error", "failed")
"""What becomes of a line."""
MAX_LINES = 8192
"""That wait for the disk; those beyond are dropped."""
MAX_BYTES = 32 << 20
"""Of those lines."""
BATCH_LINES = 256
WRITE_EVERY_S = 1.0
CLOSE_TIMEOUT_S = 5.0
MAX_FILES = 64
"""Written at a time: one for each model."""
KEY_BYTES = 16
KEY_FILE = "record-key"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

log = structlog.get_logger(__name__)


class _Key(msgspec.Struct, frozen=True):
    """What the processes of a router have in common."""

    key: bytes
    began_at: float
    began: float


class Recorder:
    """The record of a process, from `start` to `close`.

    The loop makes a line while what it is made of is at hand: on the thread that took four times
    as long, and kept all of a request until then. It appends it to a bounded queue, and a request
    waits for nothing else. A disk that fails costs lines, which are counted by why in `lines`, and
    one line in the log.
    """

    def __init__(
        self,
        path: Path,
        salt: Salt,
        *,
        max_bytes: int,
        kept: int,
        process: int = 0,
        write: Write = os.write,
    ) -> None:
        self._path, self._salt, self._process, self._write = path, salt, process, write
        self._max_bytes, self._kept = max_bytes, kept
        self._files: dict[tuple[str, int], RecordFile] = {}
        self._models: dict[RecordFile, str] = {}
        self._queue: deque[tuple[RecordFile, bytes]] = deque()
        # Each of the two is changed by one thread only.
        self._queued_bytes = self._written_bytes = 0
        self._unique = secrets.randbits(63)
        self._wake, self._closing, self._failing = threading.Event(), False, False
        self._thread: threading.Thread | None = None
        self.lines: Counter[str] = Counter()
        """by outcome: see OUTCOMES"""
        self.bytes = 0
        """written, ever"""
        self.tail = RecordTail()
        """the newest lines, whether or not the disk took them"""

    def start(self) -> None:
        """Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="record", daemon=True)
            self._thread.start()

    async def close(self) -> None:
        """Write what waits, for a while at most. Idempotent."""
        self._closing = True
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, CLOSE_TIMEOUT_S)

    def file_of(self, model: str, router: KvRouter) -> RecordFile | None:
        """The file of a model's requests, the only one's if it has no name; None: there are too
        many. The same one for a model that comes again with the same blocks."""
        block_size = router.block_size
        key = (model, block_size)
        header = self._header(model, router)
        file = self._files.get(key)
        if file is not None:
            file.header = header
        elif len(self._files) < MAX_FILES:
            path = self._path
            if model:
                same = any(block != block_size and name == model for name, block in self._files)
                path = with_tag(path, f"{model}-{block_size}" if same else model)
            file = self._files[key] = RecordFile(
                path, header, max_bytes=self._max_bytes, kept=self._kept, write=self._write
            )
            self._models[file] = model
        return file

    @property
    def headers(self) -> dict[str, bytes]:
        """The first line of each file as it would be begun now, by its model."""
        return {model: file.header() for file, model in self._models.items()}

    def put(
        self,
        file: RecordFile | None,
        request: Request,
        arrived: float,
        ended: float,
        status: str,
    ) -> None:
        """Take a request that ended: see Salt.line. Never waits."""
        waiting = self._queued_bytes - self._written_bytes
        if file is None or len(self._queue) >= MAX_LINES or waiting >= MAX_BYTES:
            self.lines["queue_full"] += 1
            return
        self._unique += 1
        step = blocks_to_hash(request.facts.prompt.block_size)
        try:
            line = self._salt.line(request, arrived, ended, status, step, self._unique)
        except Exception:  # such as a token that is none: the others are recorded
            if not self.lines["failed"]:
                log.warning("a request cannot be recorded", exc_info=True)
            self.lines["failed"] += 1
            return
        self._queued_bytes += len(line)
        self._queue.append((file, line))
        if len(self._queue) == BATCH_LINES:
            self._wake.set()

    def _header(self, model: str, router: KvRouter) -> Callable[[], bytes]:
        def header() -> bytes:
            config = router.config
            workers = tuple(
                Fleet(
                    str(entry.worker_id),
                    entry.total_kv_blocks or 0,
                    entry.max_num_batched_tokens or 0,
                )
                for entry in router.registry.entries()
            )
            policy = config.policy_name if config.mode == "kv" else config.mode
            made = new_header(
                self._salt,
                router.block_size,
                model,
                process=self._process,
                policy=policy,
                workers=workers,
            )
            return msgspec.json.encode(made) + b"\n"

        return header

    # On the thread

    def _run(self) -> None:
        while True:
            self._wake.wait(WRITE_EVERY_S)
            self._wake.clear()
            last = self._closing
            while self._queue:
                self._write_batch()
            if last:
                break
        for file in self._files.values():
            file.close()

    def _write_batch(self) -> None:
        batches: dict[RecordFile, list[bytes]] = {}
        for _ in range(min(BATCH_LINES, len(self._queue))):
            file, line = self._queue.popleft()
            self._written_bytes += len(line)
            batches.setdefault(file, []).append(line)
        for file, lines in batches.items():
            self.tail.append(self._models[file], lines)
            try:
                self.bytes += file.append(lines)
            except OSError as error:
                self.lines["disk_error"] += len(lines)
                if not self._failing:
                    text = error.strerror or str(error)
                    log.warning("requests are not recorded", file=str(file.path), error=text)
                self._failing = True
            else:
                self.lines["written"] += len(lines)
                if self._failing:
                    log.info("requests are recorded again", file=str(file.path))
                self._failing = False


class PoolRecord:
    """A DispatchObserver before another one: each request of a pool that had a prompt is a line."""

    def __init__(
        self,
        recorder: Recorder,
        model: str,
        router: KvRouter,
        clock: Clock,
        inner: DispatchObserver,
    ) -> None:
        self._recorder, self._now, self._inner = recorder, clock.now, inner
        self._file = recorder.file_of(model, router)
        self.on_message, self.gaps_s = inner.on_message, inner.gaps_s
        self.on_retry = inner.on_retry

    def on_end(
        self, request: Request | None, code: StatusCode, other: OtherCall | None = None
    ) -> None:
        self._inner.on_end(request, code, other)
        if request is None:
            return
        record = current_record()
        self._recorder.put(
            self._file,
            request,
            request.arrived if record is None else record.began,
            self._now(),
            "ok" if code is StatusCode.OK else code.name.lower(),
        )


def with_tag(path: Path, tag: str) -> Path:
    """The path with a tag before the endings of its name."""
    stem, dot, endings = path.name.partition(".")
    return path.with_name(f"{stem}-{_UNSAFE.sub('_', tag)}{dot}{endings}")


def recorder_of(
    path: str | None,
    *,
    max_mb: float,
    kept: int,
    process: int | None = None,
    folder: Path | None = None,
) -> Recorder | None:
    """The recorder that the settings ask for. `process` is the number of one of several, which meet
    in `folder`. ConfigError if nothing can be written at the path."""
    if path is None:
        return None
    target = Path(path)
    if process is not None:
        target = with_tag(target, str(process))
    check_target(target)
    salt = shared_salt(folder)
    max_bytes = int(max_mb * (1 << 20))
    return Recorder(target, salt, max_bytes=max_bytes, kept=kept, process=process or 0)


def check_target(path: Path) -> None:
    """ConfigError if it cannot be a record."""
    folder = path.parent
    if path.is_dir():
        raise bad_setting("record", f"{path} is a folder: name a file in it")
    if path.exists() and not path.is_file():
        raise bad_setting("record", f"{path} is no ordinary file")
    if not folder.is_dir():
        raise bad_setting("record", f"cannot write {path}: no such folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise bad_setting("record", f"cannot write {path}: its folder is not writable")


def shared_salt(folder: Path | None) -> Salt:
    """A new salt, or the one that the processes which meet in this folder share."""
    own = _Key(secrets.token_bytes(KEY_BYTES), time.monotonic(), time.time())
    if folder is not None:
        own = _agreed(folder, own)
    return Salt(own.key, own.began_at, own.began)


def _agreed(folder: Path, own: _Key) -> _Key:
    """The first process' key: a link is made by one of them only."""
    path, new = folder / KEY_FILE, folder / f"{KEY_FILE}.{os.getpid()}"
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, msgspec.msgpack.encode(own))
        try:
            os.link(new, path)
        except FileExistsError:
            pass
    finally:
        os.close(file)
        new.unlink()
    return msgspec.msgpack.decode(path.read_bytes(), type=_Key)
