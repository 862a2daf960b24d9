"""A prompt's handle: hashed once, taken wherever token ids are, matched once per decision."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.policy.routers import router_among

from dynamo_router import KvRouter, KvRouterConfig
from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.indexer.hashing import block_hashes, packed_hashes, sequence_hashes
from dynamo_router.router import candidates, prompt
from dynamo_router.router.admission import AdmissionConfig
from dynamo_router.router.overlaps import Overlaps
from dynamo_router.router.prompt import NO_CONTENT, Content, Prompt

BLOCK = 16
TOKENS = list(range(5 * BLOCK + 3))


class Counted:
    """Counts the calls of a function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        return self.function(*args, **more)


@pytest.fixture
def router() -> Iterator[KvRouter]:
    admission = AdmissionConfig(queue_policy="wspt")
    settings = {"block_size": BLOCK, "use_kv_events": False, "admission": admission}
    with router_among(1, 2, **settings) as made:
        yield made


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> tuple[Counted, Counted]:
    """How often tokens are hashed, and how often hashes are chained."""
    counted = Counted(block_hashes), Counted(sequence_hashes)
    monkeypatch.setattr(prompt, "block_hashes", counted[0])
    monkeypatch.setattr(prompt, "sequence_hashes", counted[1])
    return counted


@pytest.fixture
def matching(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted(Overlaps.read)

    class Reading(candidates.Overlaps):
        def read(self, *args: Any) -> None:
            counted(self, *args)

    monkeypatch.setattr(candidates, "Overlaps", Reading)
    return counted


def test_its_hashes_are_those_of_its_tokens_and_content() -> None:
    content = Content("adapter", "tenant", [{"mm_objects": [{"mm_hash": 7}]}])
    made = Prompt(TOKENS, BLOCK, content)
    expected = block_hashes(
        TOKENS,
        BLOCK,
        block_mm_infos=content.block_mm_infos,
        lora_name="adapter",
        cache_namespace="tenant",
    )
    assert (made.isl, made.blocks) == (len(TOKENS), 6)
    assert made.local_hashes.tolist() == expected.tolist()
    assert made.sequence_hashes.tolist() == sequence_hashes(expected).tolist()
    assert made.hashed() is made


@pytest.mark.parametrize("content", [NO_CONTENT, Content(cache_namespace="tenant")])
@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, 83, 16_384])
def test_packed_hashes_are_those_of_its_arrays(length: int, content: Content) -> None:
    """Whichever is asked first; its tokens are let go of."""
    tokens = np.arange(7, 7 + length, dtype=np.uint32)
    local = block_hashes(tokens, BLOCK, cache_namespace=content.cache_namespace)
    packed = local.tobytes(), sequence_hashes(local).tobytes()
    first, then = Prompt(tokens, BLOCK, content), Prompt(tokens, BLOCK, content)
    assert first.packed_hashes() == packed
    assert (first.local_hashes.tobytes(), first.sequence_hashes.tobytes()) == packed
    assert (then.local_hashes.tobytes(), then.sequence_hashes.tobytes()) == packed
    assert then.packed_hashes() == packed and first.hashed() is first
    assert first._token_ids == then._token_ids == ()


@pytest.mark.parametrize("namespace", [None, "", "tenant"])
def test_packed_hashes_go_on_from_a_parent(namespace: str | None) -> None:
    tokens = np.arange(7, 7 + 83, dtype=np.uint32)
    local = block_hashes(tokens, BLOCK, cache_namespace=namespace)
    whole = local.tobytes(), sequence_hashes(local).tobytes()
    assert packed_hashes(tokens, BLOCK, namespace) == whole
    parent = int(sequence_hashes(local)[1])
    behind = packed_hashes(tokens[2 * BLOCK :].tobytes(), BLOCK, namespace, parent)
    assert behind == (whole[0][16:], whole[1][16:])
    content = Content(cache_namespace=namespace)
    made = Prompt.of_packed(83, BLOCK, whole, content)
    assert made.local_hashes.tobytes() == whole[0] and made.hashed() is made
    assert (made.sequence_hashes.tobytes(), made.packed_hashes()) == (whole[1], whole)
    with pytest.raises(ValueError, match="40 and 32 bytes of hashes for 83 tokens"):
        Prompt.of_packed(83, BLOCK, (whole[0], whole[1][:-8]), content)
    with pytest.raises(OverflowError):
        packed_hashes(tokens, BLOCK, parent=1 << 64)


@pytest.mark.parametrize("tokens", [[-1] * BLOCK, [1 << 32] * BLOCK, ["a"], b"12345"])
def test_tokens_that_are_none_have_no_packed_hashes(tokens: Any) -> None:
    made = Prompt(tokens, BLOCK)
    with pytest.raises(InvalidRequestError, match="token_ids: "):
        made.packed_hashes()
    with pytest.raises(InvalidRequestError, match="token_ids: "):
        _ = made.local_hashes
    with pytest.raises(ValueError, match="kv_block_size must be at least 1, not 0"):
        packed_hashes([1], 0)


def test_everything_asked_of_one_handle_hashes_it_once(
    router: KvRouter, hashing: tuple[Counted, Counted]
) -> None:
    handle = router.prompt(TOKENS)
    assert [each.calls for each in hashing] == [0, 0]
    router.queue_terms(handle)
    router.decide(handle, "r1")
    router.decide(handle, excluded_workers=[1])
    router.explain(handle)
    router.potential_loads(handle)
    router.tier_overlaps(handle)
    assert [each.calls for each in hashing] == [1, 1]


def test_a_decision_matches_once_and_so_does_a_place_in_the_queue(
    router: KvRouter, matching: Counted
) -> None:
    handle = router.prompt(TOKENS)
    for count, ask in enumerate((router.queue_terms, router.decide, router.explain), 1):
        ask(handle)
        assert matching.calls == count


def test_a_handle_and_its_tokens_get_the_same_answers(router: KvRouter) -> None:
    salt: dict[str, Any] = {"cache_namespace": "tenant", "lora_name": "adapter"}
    router.decide(TOKENS, "r1", **salt)
    handle = router.prompt(TOKENS, **salt)
    for ask in (
        router.decide,
        router.best_worker,
        router.overlaps,
        router.tier_overlaps,
        router.potential_loads,
        router.uncached_tokens,
        router.queue_terms,
    ):
        assert ask(handle) == ask(TOKENS, **salt)  # type: ignore[operator]  # each takes either
    assert router.explain(handle).to_dict() == router.explain(TOKENS, **salt).to_dict()
    assert router.overlaps(TOKENS) == {} and max(router.overlaps(handle).values()) == 5


def test_modes_that_do_not_look_at_caches_hash_nothing(hashing: tuple[Counted, Counted]) -> None:
    with KvRouter(KvRouterConfig(mode="least-loaded", block_size=BLOCK)) as router:
        router.add_worker(1)
        router.decide(TOKENS, "r1")
    assert [each.calls for each in hashing] == [0, 0]


def test_a_handle_made_of_hashes_needs_no_tokens(router: KvRouter) -> None:
    local = block_hashes(TOKENS, BLOCK)
    packed = local.tobytes(), sequence_hashes(local).tobytes()
    handle = Prompt.of_packed(len(TOKENS), BLOCK, packed)
    router.decide(handle, "r1")
    assert router.uncached_tokens(TOKENS) == 3


def test_a_handle_that_does_not_fit_is_refused(router: KvRouter) -> None:
    handle = router.prompt(TOKENS)
    with pytest.raises(ValueError, match="lora_name: a Prompt is given that where it is made"):
        router.decide(handle, lora_name="adapter")
    assert router.decide(handle, lora_name=None).request_blocks == 6
    with pytest.raises(ValueError, match="a Prompt in blocks of 8, not 16"):
        router.decide(Prompt(TOKENS, 8))


@pytest.mark.parametrize(
    ("tokens", "message"), [([], "empty prompt"), (iter([1]), "token_ids has no length")]
)
def test_a_handle_of_nothing_is_refused(router: KvRouter, tokens: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        router.prompt(tokens)


def test_tokens_that_cannot_be_are_refused_on_first_use(router: KvRouter) -> None:
    handle = router.prompt(np.array([1, -1] * BLOCK))
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="out of range"):
            router.decide(handle, "r1")
    assert all(view.active_requests == 0 for view in router.workers())
