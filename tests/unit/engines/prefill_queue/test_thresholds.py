"""Thresholds: the store's before the settings', these before a router's, then the documents'."""

from support.polling import until

from dynamo_router.engines.prefill_queue import PrefillThresholds, Thresholds
from dynamo_router.engines.prefill_queue.thresholds import DOCUMENTED
from dynamo_router.runtime.kv_stores import MemoryStore


async def test_the_stores_count_first_and_what_is_no_number_counts_for_nothing() -> None:
    store = MemoryStore()
    found = Thresholds(PrefillThresholds(50, None), store, namespace="ns", model="m")
    try:
        assert found.found(None) == PrefillThresholds(50, DOCUMENTED.max_prefill_queue_size)
        assert found.found(PrefillThresholds(None, 7)) == PrefillThresholds(50, 7)
        shared = store.bucket("/ns/disagg_router")
        await shared.put("max_local_prefill_length", b"200")
        await shared.put("max_prefill_queue_size", b"9")
        await until(lambda: found.stored == PrefillThresholds(200, 9))
        models = store.bucket("public/components/disagg_router/models/chat")
        await models.put("m", b'{"max_local_prefill_length": 300}')
        await models.put("m2", b'{"max_local_prefill_length": 400}')  # another one's
        await until(lambda: found.stored == PrefillThresholds(300, 9))
        for nothing in (b"{}", b"[1]", b'{"max_local_prefill_length": -1}'):
            await models.put("m", nothing)
            await until(lambda: found.stored == PrefillThresholds(200, 9))
        await shared.put("max_local_prefill_length", b"many")
        await shared.delete("max_prefill_queue_size")
        await until(lambda: found.stored == PrefillThresholds())
        await shared.put("max_local_prefill_length", b"0")  # and it is followed still
        await until(lambda: found.stored == PrefillThresholds(0, None))
    finally:
        await found.close()
        await store.close()


def test_what_they_mean() -> None:
    limits = PrefillThresholds(100, 3)
    assert limits.is_short(100) and not limits.is_short(101)
    assert limits.is_full(3) and not limits.is_full(2)
    none = PrefillThresholds()
    assert not none.is_short(0) and not none.is_full(10**6)
    assert not Thresholds(none).are_given and Thresholds(limits).are_given
