"""Bodies that come packed by gzip or deflate: what they hold, and what is refused."""

import asyncio
import gzip
import tracemalloc
import zlib
from contextlib import closing

import pytest

from dynamo_router.process.off_loop import OffLoop, OffLoopBounds
from dynamo_router.transport.http1 import HttpError
from dynamo_router.transport.http1.asgi import LONG_JOIN, read_body
from dynamo_router.transport.http1.packed_body import MOST_MEMBERS, PIECE, coding_of, unpacked

MOST = 4 << 20


def raw(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(data) + made.flush()


async def unpack(body: bytes, coding: str, most: int = MOST) -> tuple[bytes, int, int]:
    """(what it holds, the bytes that were counted, computations beside the event loop)"""
    counted: list[int] = []
    with closing(OffLoop()) as off_loop:
        found = await unpacked(body, coding, most, counted.append, off_loop)
        return found, sum(counted), off_loop.runs


@pytest.mark.parametrize(
    "coding, pack",
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress),
     ("deflate", raw)],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 1000, PIECE, PIECE + 1, MOST])
async def test_a_packed_body_is_what_was_packed(coding: str, pack, size: int) -> None:  # type: ignore[no-untyped-def]
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    found, counted, runs = await unpack(pack(data), coding)
    assert found == data and counted == size
    assert bool(runs) == (size > PIECE)


async def test_what_does_not_shrink_is_unpacked_too() -> None:
    data = b"".join(zlib.crc32(b"%d" % n).to_bytes(4, "big") for n in range(100_000))
    assert (await unpack(gzip.compress(data), "gzip"))[0] == data


@pytest.mark.parametrize("sizes", [
    [1, 1], [0, 3, 0], [PIECE, PIECE, 1], [PIECE - 1, 2], [MOST // 2] * 2, [1] * MOST_MEMBERS,
])  # fmt: skip
async def test_several_members_of_gzip_are_one_body(sizes: list[int]) -> None:
    """Also where they end at the bounds of the pieces that zlib is given."""
    parts = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    packed = b"".join(gzip.compress(part, 0 if n % 2 else 9) for n, part in enumerate(parts))
    found, counted, _ = await unpack(packed, "gzip")
    assert found == b"".join(parts) and counted == sum(sizes)


async def test_members_of_a_bomb_count_together() -> None:
    with pytest.raises(HttpError, match="longer than") as error:
        await unpack(gzip.compress(bytes(MOST // 2)) * 3, "gzip")
    assert error.value.status == 413


@pytest.mark.parametrize("size", [MOST + 1, 100 << 20])
async def test_a_bomb_costs_no_memory(size: int) -> None:
    bomb = gzip.compress(bytes(size))
    tracemalloc.start()
    try:
        with pytest.raises(HttpError, match="longer than") as error:
            await unpack(bomb, "gzip")
        assert error.value.status == 413
        assert tracemalloc.get_traced_memory()[1] < 8 * PIECE + len(bomb)
    finally:
        tracemalloc.stop()


async def test_a_short_bound_holds_for_short_bodies_too() -> None:
    with pytest.raises(HttpError) as error:
        await unpack(gzip.compress(bytes(11)), "gzip", 10)
    assert error.value.status == 413


WHOLE = gzip.compress(b'{"model": "tiny"}')


@pytest.mark.parametrize(
    "body, coding",
    [
        (b"{}", "gzip"),
        (b"{}", "deflate"),
        (WHOLE[:-1], "gzip"),
        (WHOLE[:5], "gzip"),
        (WHOLE[:-8] + bytes(8), "gzip"),
        (WHOLE + b"x", "gzip"),
        (WHOLE * 2 + WHOLE[:-1], "gzip"),
        (gzip.compress(b"") * (MOST_MEMBERS + 1), "gzip"),
        (zlib.compress(b"{}") * 2, "deflate"),
        (raw(b"{}") * 2, "deflate"),
        (WHOLE + bytes(PIECE), "gzip"),
        (WHOLE, "deflate"),
        (gzip.compress(bytes(PIECE * 3))[:-4], "gzip"),
    ],
)
async def test_what_is_not_packed_so_is_400(body: bytes, coding: str) -> None:
    with pytest.raises(HttpError) as error:
        await unpack(body, coding)
    assert error.value.status == 400


async def test_where_there_are_no_threads_it_is_unpacked_at_once() -> None:
    data = bytes(PIECE * 2)
    assert await unpacked(gzip.compress(data), "gzip", MOST, lambda size: None, None) == data
    with pytest.raises(HttpError):
        await unpacked(gzip.compress(data), "gzip", PIECE, lambda size: None, None)


async def test_others_go_on_while_a_long_body_is_unpacked() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    try:
        await unpack(gzip.compress(bytes(MOST)), "gzip")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert turns > 1


@pytest.mark.parametrize("name", ["br", "zstd", "gzip, gzip", "compress", "x" * 1000])
def test_other_codings_are_refused(name: str) -> None:
    with pytest.raises(HttpError) as error:
        coding_of({"content-encoding": name})
    assert error.value.status == 415
    assert error.value.headers == {"accept-encoding": "gzip, deflate"}


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "identity"}])
def test_a_plain_body_stays_as_it_is(headers: dict[str, str]) -> None:
    assert coding_of(headers) == ""
    assert coding_of({"content-encoding": " GZip "}) == "gzip"


@pytest.mark.parametrize(("parts", "beside"), [(1, 0), (20, 0), (200, 1)])
async def test_the_parts_of_a_long_body_are_joined_beside_the_event_loop(
    parts: int, beside: int
) -> None:
    left = [bytes((n,)) * (16 << 10) for n in range(parts)]
    whole, off_loop, counted = b"".join(left), OffLoop(), list[int]()

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    try:
        assert await read_body(receive, MOST, counted.append, off_loop) == whole
        assert off_loop.runs == beside and sum(counted) == len(whole)
    finally:
        off_loop.close()


async def test_a_long_body_that_finds_no_room_to_be_joined_is_refused_at_each_door() -> None:
    """Not all of them know of CapacityError."""
    off_loop = OffLoop(OffLoopBounds(bytes=1 << 20))

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": bytes(LONG_JOIN)}

    try:
        with pytest.raises(HttpError, match="max_computation_bytes") as error:
            await read_body(receive, MOST, off_loop=off_loop)
        assert error.value.status == 429
    finally:
        off_loop.close()
