"""The kernels on a request's way where memory ends at each of their allocations: MemoryError and
nothing else, nothing kept of what failed, and the next request is served.

CPython's own test module makes the allocations fail; a build without it skips these.
"""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from dynamo_router.base.clock import ManualClock
from dynamo_router.frontend.processor import PieceCache, Tenant
from dynamo_router.frontend.processor._cuts import Cutter
from dynamo_router.frontend.processor._words import WordIds
from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.router.placement import Placement
from dynamo_router.transport.http1._whole_request import decoded, read_whole_request

testcapi: Any = pytest.importorskip("_testcapi")

MOST = 400
"""Allocations of a call, at most."""
QUIET = 30
"""Calls without a failure, one after another, after which there is nothing left to fail."""


def fail_at_each(call: Callable[[], Any], check: Callable[[Any], None]) -> int:
    """Make one allocation fail after another; `check` gets what came of each call, None where it
    had no memory. How many calls that were."""
    failed = quiet = 0
    for start in range(MOST):
        found = None
        gc.disable()  # it would take what an earlier test left, and fail in there
        testcapi.set_nomemory(start, start + 1)
        try:
            found = call()
        except MemoryError:
            failed += 1
            quiet = -1
        finally:
            testcapi.remove_mem_hooks()
            gc.enable()
        check(found)
        quiet += 1
        if quiet == QUIET:
            return failed
    raise AssertionError(f"still failing after {MOST} allocations")


HEAD = b"POST /v1/chat/completions?a=1 HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
BODY = b'{"model": "tiny", "messages": []}'
REQUEST = HEAD + b"x-a: b\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)


def test_a_whole_request_is_read_or_not() -> None:
    whole = read_whole_request(REQUEST, 4096, 12)
    assert whole is not None and whole[4] == BODY

    def check(found: Any) -> None:
        assert found in (None, whole)

    assert fail_at_each(lambda: read_whole_request(REQUEST, 4096, 12), check)
    assert read_whole_request(REQUEST, 4096, 12) == whole
    headers = decoded(whole[3])
    assert fail_at_each(lambda: decoded(whole[3]), lambda found: check_is(found, headers))


def check_is(found: Any, wanted: Any) -> None:
    assert found is None or found == wanted


def test_a_plain_decision_is_booked_whole_or_not_at_all() -> None:
    with KvRouter(KvRouterConfig(block_size=4), clock=ManualClock(), seed=1) as router:
        for worker in range(3):
            router.add_worker(worker, total_kv_blocks=64, max_num_batched_tokens=32)
        plain = router._plain
        assert plain is not None
        placements = [
            Placement(
                router.prompt(
                    list(range(40)),
                ),
                f"r{n}",
            )
            for n in range(MOST)
        ]
        for each in placements:
            each.prompt.hashed()
        left = iter(placements)
        asked: list[Placement] = []

        def call() -> Any:
            return plain.place(asked[-1])

        def check(found: Any) -> None:
            slots, placement = router.slots, asked[-1]
            if found is None:
                assert slots.total_requests == 0, "nothing stays booked"
            else:
                assert slots.worker_of(placement.request_id) is not None
                assert router.free(placement.request_id)
            assert not slots.active_blocks().any() and not slots.active_prefill_tokens().any()
            again = router.place(placement)
            assert again.request_id == placement.request_id and router.free(placement.request_id)
            asked.append(next(left))

        asked.append(next(left))
        assert fail_at_each(call, check)


def test_words_are_kept_whole_or_not_at_all() -> None:
    text = "the quick brown fox jumps over a lazy dog"
    ids = {word: bytes([number, 0, 0, 0]) for number, word in enumerate(text.split(" "))}
    ids |= {f" {word}": each for word, each in ids.items()}
    made: list[WordIds] = []

    def kept(words: WordIds) -> Any:
        for word, each in ids.items():
            words.keep(word, each)
        return words.look_up(text), words.known(text)

    def fresh() -> WordIds:
        return WordIds(Cutter((), " ", 1, 1), 64, 64)

    wanted = kept(fresh())
    assert wanted[1] is not None

    def check(found: Any) -> None:
        check_is(found, wanted)
        assert kept(made[-1]) == wanted and len(made[-1]) == len(ids)
        made.append(fresh())

    made.append(fresh())
    assert fail_at_each(lambda: kept(made[-1]), check)


def test_a_cache_of_pieces_counts_what_it_keeps() -> None:
    names = iter(range(100 * MOST))
    caches: list[PieceCache] = []

    def call() -> Any:
        caches[-1].put(b"new", b"1234", Tenant("other", 2))
        return True

    def fresh() -> None:
        cache = PieceCache(16384)
        for number in range(8):
            cache.put(b"%d" % number, b"12345678", Tenant("one", 1))
        caches.append(cache)

    def check(found: Any) -> None:
        cache = caches[-1]
        cache.put(b"new", b"1234", Tenant("other", 2))
        assert cache.get(b"new") == b"1234"
        for _ in range(50):  # all that were there make room
            cache.put(b"x%d" % next(names), b"1" * 100, Tenant("one", 1))
        while len(cache):
            cache._drop()
        assert cache.size == 0 and not cache._root.parts and not cache._root.by_size
        fresh()

    fresh()
    assert fail_at_each(call, check)


class Parts:
    """What has the ids of three pieces."""

    part_keys = b"".join(b"%016d" % number for number in range(3))

    def __len__(self) -> int:
        return 1000

    def part(self, key: bytes) -> bytes:
        return key


@pytest.mark.parametrize("what", ["put_whole", "forget"])
def test_no_piece_is_looked_for_where_it_is_no_more(what: str) -> None:
    caches: list[PieceCache] = []
    tenant, names = Tenant("one", 1), [b"%016d" % number for number in range(3)]

    def call() -> Any:
        if what == "forget":
            caches[-1].forget(b"whole")
        else:
            caches[-1].put_whole(b"new", Parts(), tenant)
        return True

    def fresh() -> None:
        cache = PieceCache(16384)
        cache.put(names[1], b"\x01", tenant)
        cache.put_whole(b"whole", Parts(), tenant)
        cache.put(b"y", b"1234", Tenant("other", 1))
        caches.append(cache)

    def check(found: Any) -> None:
        cache = caches[-1]
        if found and what == "forget":
            assert cache.get(b"whole") is None
        assert {cache.ids(name) for name in names} <= {None, *names}
        while len(cache):
            cache._drop()
        assert cache.size == 0 and not cache._root.parts and not cache._root.by_size
        assert not cache._wholes
        fresh()

    fresh()
    assert fail_at_each(call, check)
