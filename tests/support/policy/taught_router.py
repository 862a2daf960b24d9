"""A router whose policy has learnt how fast its engines are."""

from dynamo_router import KvRouter
from dynamo_router.base.clock import ManualClock

STEP_S, TOKEN_S = 0.01, 1e-4
"""Of a step, and of a prompt's token in it."""


def teach(router: KvRouter, clock: ManualClock) -> KvRouter:
    """Two workers of 100 blocks, 512 tokens a step, and what 200 requests alone tell of them."""
    for worker_id in (1, 2):
        router.add_worker(worker_id, total_kv_blocks=100, max_num_batched_tokens=512)
    for turn in range(200):
        tokens = 50 + 37 * turn % 400
        router.decide([turn + 1] * tokens, "lesson")
        clock.advance(STEP_S + TOKEN_S * tokens)
        router.mark_prefill_complete("lesson")
        clock.advance(0.1)
        router.free("lesson", output_tokens=10)
    return router
