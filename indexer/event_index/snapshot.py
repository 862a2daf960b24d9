"""The whole index in a file, and back: for a router that restarts among engines that go on.

A file is a row of frames: the head, those of each source, the end. A frame is its length (u32), the
XXH3-64 of what follows (u64), both little-endian, and a msgpack map. A source is a frame with its
cursor, and as many as its arrays need. It is read out at one moment; different sources at different
moments, which is all that matters.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Annotated, BinaryIO, TypeVar

import msgspec
import xxhash

from ...base.errors import UNREADABLE, ConfigError
from ...base.identity import WorkerWithDpRank
from ..source import CursorImage, SourceImage, SourceState, SourceStatus
from .actor import EventIndex

FORMAT = "dynamo-router index"
VERSION = 2
HASHES = "xxh3-64 seed 1337"
MAX_FRAME_BYTES = 1 << 30
PART_BYTES = 1 << 26
"""of a source's arrays in one frame"""
SAVED = (SourceState.EXACT, SourceState.RECOVERING, SourceState.TRIMMED)
_HASH_BYTES = 8
_NOTHING: Mapping[WorkerWithDpRank, SourceStatus] = {}
_LEAD = Struct("<IQ")
_UNUSABLE = "the index snapshot cannot be used"
T = TypeVar("T")


class ForeignSnapshotError(ConfigError):
    """A snapshot is whole, and of another fleet, setting or version."""


class SnapshotHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot is of; one of anything else is of no use."""

    block_size: int
    subject: str
    """the event plane's subject that its events came from"""
    format: str = FORMAT
    version: int = VERSION
    hashes: str = HASHES
    byte_order: str = sys.byteorder


class _Source(msgspec.Struct, frozen=True):
    """What a source's arrays follow: its runs, external and local hashes, one behind the other."""

    worker_id: Annotated[int, msgspec.Meta(ge=0)]
    dp_rank: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    cursor: CursorImage
    unindexed: Annotated[int, msgspec.Meta(ge=0)]
    run_bytes: Annotated[int, msgspec.Meta(ge=0)]
    blocks: Annotated[int, msgspec.Meta(ge=0)]


class _Part(msgspec.Struct, frozen=True):
    arrays: bytes


class _End(msgspec.Struct, frozen=True):
    sources: int


def dump_index(index: EventIndex, head: SnapshotHead) -> Iterator[bytes]:
    """The frames of a snapshot; no more than one source is held in memory.

    Only sources of which nothing was missed are in it, those that were trimmed too. Others would
    have to announce themselves anyway.
    """
    yield _frame(head)
    sources = 0
    for status in index.sources():
        if status.state not in SAVED:
            continue
        image = index.dump_source(status.worker)
        if image is not None:
            sources += 1
            yield from _source_frames(image)
    yield _frame(_End(sources))


def _source_frames(image: SourceImage) -> Iterator[bytes]:
    arrays = (image.runs, image.external_hashes, image.local_hashes)
    blocks = len(image.local_hashes) // _HASH_BYTES
    yield _frame(_Source(*image.worker, image.cursor, image.unindexed, len(image.runs), blocks))
    for array in arrays:
        for at in range(0, len(array), PART_BYTES):
            yield _frame(_Part(array[at : at + PART_BYTES]))


def restore_index(index: EventIndex, frames: Iterable[bytes], head: SnapshotHead) -> int:
    """Take a snapshot in; the number of its sources. For an index that has no workers yet.

    What the index has no room for is left out, as if it had been dropped later. ConfigError, and
    nothing is taken in, if the snapshot is broken or not what `head` asks for.
    """
    return _take_in(index, _images(frames, head))


def merge_index(index: EventIndex, frames: Iterable[bytes], head: SnapshotHead) -> int:
    """Take in what another index knew of sources that this one has no message of; how many.

    Of a source that this one knows only from a snapshot, too, the later one by its cursor counts.
    What came to it itself stays. ConfigError as for restore_index; then all is as it was.
    """
    known = {status.worker: status for status in index.sources()}
    news = (image for image in _images(frames, head) if _is_news(known, image))
    return _take_in(index, news, known)


def _take_in(
    index: EventIndex,
    images: Iterable[SourceImage],
    known: Mapping[WorkerWithDpRank, SourceStatus] = _NOTHING,
) -> int:
    """Restore all of these, or none: ConfigError if one of them is not valid. How many they were.

    Of those that are `known` the index has something older, or nothing.
    """
    before: dict[WorkerWithDpRank, SourceImage | None] = {}
    try:
        for image in images:
            worker = image.worker
            if worker not in before:
                before[worker] = index.dump_source(worker) if worker in known else None
            if not index.restore_source(image):
                raise _unusable(f"the blocks of worker {tuple(worker)} do not fit together")
    except ConfigError:
        for worker, old in before.items():
            if old is not None:
                index.restore_source(old)
            elif worker in known:
                index.give_up(worker)  # it is registered, and reports all when it is asked
            else:
                index.unbind(worker)
        raise
    return len(before)


def save_index(index: EventIndex, path: Path, head: SnapshotHead) -> int:
    """Replace the file by a snapshot, all at once; its size in bytes. OSError if that fails."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    size = 0
    try:
        with scratch.open("wb") as file:
            for frame in dump_index(index, head):
                size += file.write(frame)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        with suppress(OSError):
            scratch.unlink()
        raise
    return size


def load_index(index: EventIndex, path: Path, head: SnapshotHead) -> int | None:
    """As restore_index, from a file; None if there is none."""
    try:
        with path.open("rb") as file:
            return restore_index(index, read_frames(file), head)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(str(error)) from error


def read_frames(file: BinaryIO) -> Iterator[bytes]:
    """The frames of a file, as they are. The last one may be cut short."""
    while lead := file.read(_LEAD.size):
        size = _LEAD.unpack(lead)[0] if len(lead) == _LEAD.size else 0
        yield lead + (file.read(size) if size <= MAX_FRAME_BYTES else b"")


def _is_news(known: Mapping[WorkerWithDpRank, SourceStatus], image: SourceImage) -> bool:
    """Whether nothing is known of a source, or only what an earlier snapshot than the image had."""
    status = known.get(image.worker)
    if status is None or status.state is SourceState.SILENT:
        return True
    missing = status.missing
    return (
        status.restored
        and missing is not None
        and missing.publisher_id == image.cursor.publisher_id
        and status.last_event_id < image.cursor.last_event_id
    )


def _images(frames: Iterable[bytes], head: SnapshotHead) -> Iterator[SourceImage]:
    """What stands between the head and the end, each part checked before it is believed."""
    payloads = map(_payload, frames)
    found = _decode(_next(payloads), SnapshotHead)
    for name in SnapshotHead.__struct_fields__:
        there, wanted = getattr(found, name), getattr(head, name)
        if there != wanted:
            text = f"its {name} is {there!r}, wanted is {wanted!r}"
            raise ForeignSnapshotError(f"{_UNUSABLE}: {text}", key="index_snapshot")
    count = 0
    payload = _next(payloads)
    while (end := _end(payload)) is None:
        source = _decode(payload, _Source)
        worker = WorkerWithDpRank(source.worker_id, source.dp_rank)
        hash_bytes = source.blocks * _HASH_BYTES
        arrays = [_array(payloads, n) for n in (source.run_bytes, hash_bytes, hash_bytes)]
        count += 1
        yield SourceImage(worker, source.cursor, source.unindexed, *arrays)
        payload = _next(payloads)
    if end != count:
        raise _unusable(f"it has {count} sources, not {end}")
    if next(payloads, None) is not None:
        raise _unusable("something follows its end")


def _array(payloads: Iterator[bytes], size: int) -> bytes:
    """The next `size` bytes of a source's arrays. No more is read than there is."""
    parts = []
    while size > 0:
        part = _decode(_next(payloads), _Part).arrays
        if not 0 < len(part) <= size:
            raise _unusable("an array's length in it is wrong")
        size -= len(part)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _end(payload: bytes) -> int | None:
    with suppress(msgspec.DecodeError):
        return msgspec.msgpack.decode(payload, type=_End).sources
    return None


def _frame(content: msgspec.Struct) -> bytes:
    payload = msgspec.msgpack.encode(content)
    return _LEAD.pack(len(payload), xxhash.xxh3_64_intdigest(payload)) + payload


def _payload(frame: bytes) -> bytes:
    if len(frame) < _LEAD.size:
        raise _unusable("it ends too early")
    size, checksum = _LEAD.unpack_from(frame)
    payload = frame[_LEAD.size :]
    if len(payload) != size:
        raise _unusable("it ends too early, or a length in it is wrong")
    if xxhash.xxh3_64_intdigest(payload) != checksum:
        raise _unusable("a checksum does not fit")
    return payload


def _next(payloads: Iterator[bytes]) -> bytes:
    payload = next(payloads, None)
    if payload is None:
        raise _unusable("it ends too early")
    return payload


def _decode(payload: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except UNREADABLE as error:
        raise _unusable(str(error)) from error


def _unusable(why: str) -> ConfigError:
    return ConfigError(f"{_UNUSABLE}: {why}", key="index_snapshot")
