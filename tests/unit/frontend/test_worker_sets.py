"""Which workers are of which model, by their cards and not by where they are."""

from collections.abc import Iterable

from dynamo_router.frontend.models.worker_sets import (
    CardKey,
    NamespaceFilter,
    WorkerSet,
    worker_sets,
)
from dynamo_router.runtime.components import EndpointName, Instance
from dynamo_router.workers.records import TRTLLM, ModelCard

HERE = EndpointName("dynamo", "backend", "generate")
THERE = EndpointName("other", "backend", "generate")


def card(name: str, checksum: str = "c1", **more: object) -> ModelCard:
    return ModelCard(name, 16, checksum=checksum, **more)  # type: ignore[arg-type]


def instances(*ids: int, at: EndpointName = HERE) -> list[Instance]:
    return [Instance(at, each, TRTLLM, f"grpc://h:{each}") for each in ids]


def members(found: Iterable[WorkerSet]) -> dict[str, set[int]]:
    return {each.name.model + each.name.checksum: set(each.instances) for each in found}


def test_two_models_at_one_endpoint_have_their_own_workers() -> None:
    cards = {CardKey(HERE, n): card("a" if n < 3 else "b") for n in (1, 2, 3, 4)}
    sets, refused = worker_sets(instances(1, 2, 3, 4), cards)
    assert members(sets.values()) == {"ac1": {1, 2}, "bc1": {3, 4}}
    assert refused == []


def test_another_checksum_is_another_set_of_the_same_model() -> None:
    cards = {CardKey(HERE, 1): card("a"), CardKey(HERE, 2): card("a", "c2")}
    sets, _ = worker_sets(instances(1, 2), cards)
    assert members(sets.values()) == {"ac1": {1}, "ac2": {2}}


def test_the_same_id_at_two_endpoints_is_two_workers() -> None:
    cards = {CardKey(HERE, 1): card("a"), CardKey(THERE, 1): card("b")}
    sets, _ = worker_sets([*instances(1), *instances(1, at=THERE)], cards)
    assert members(sets.values()) == {"ac1": {1}, "bc1": {1}}


def test_a_set_lives_as_long_as_a_card_of_it() -> None:
    """A worker that leaves takes its instance away first."""
    sets, _ = worker_sets([], {CardKey(HERE, 1): card("a")})
    assert members(sets.values()) == {"ac1": set()}


def test_an_instance_without_a_card_gets_nothing_and_is_seen() -> None:
    sets, refused = worker_sets(instances(1, 2), {CardKey(HERE, 1): card("a")})
    assert members(sets.values()) == {"ac1": {1}}
    assert [(each.key, each.reason) for each in refused] == [
        ("dynamo/backend/generate/2", "it is registered without a model card")
    ]


def test_endpoints_where_no_model_is_have_other_instances() -> None:
    queries = EndpointName("dynamo", "backend", "kv_indexer_query")
    sets, refused = worker_sets(instances(7, at=queries), {CardKey(HERE, 1): card("a")})
    assert members(sets.values()) == {"ac1": set()} and refused == []


def test_cards_that_cannot_be_served_are_refused_with_a_reason() -> None:
    cards: dict[CardKey, ModelCard | str] = {
        CardKey(HERE, 1): "not a model card: junk",
        CardKey(HERE, 2): card("a", model_input="Text"),
        CardKey(HERE, 3): card("a", worker_type="encode", model_type=""),
        CardKey(HERE, 4): card("a", worker_type="decode", needs=(("prefill", "encode"),)),
        CardKey(HERE, 5): card("a", model_type="Embedding"),
    }
    sets, refused = worker_sets(instances(1, 2, 3, 4, 5), cards)
    assert not sets
    reasons = [each.reason for each in refused]
    assert len(reasons) == 5 and all(reasons)
    for reason, word in zip(reasons, ("junk", "Text", "encode", "decode", "Embed"), strict=True):
        assert word in reason


def test_adapters_belong_to_the_workers_that_have_them() -> None:
    cards = {
        CardKey(HERE, 1): card("a"),
        CardKey(HERE, 2): card("b"),
        CardKey(HERE, 1, "fine"): card("a", adapter="fine"),
    }
    sets, _ = worker_sets(instances(1, 2), cards)
    assert {each.name.model: each.adapters for each in sets.values()} == {
        "a": frozenset({"fine"}),
        "b": frozenset(),
    }


def test_only_the_namespaces_that_are_wanted() -> None:
    whole = NamespaceFilter()
    assert whole.admits("a") and NamespaceFilter("dynamo").admits("a")
    one = NamespaceFilter("a")
    assert one.admits("a") and not one.admits("a-1") and not one.admits("b")
    updated = NamespaceFilter("x", "a")
    assert updated.admits("a") and updated.admits("a-0f3c") and not updated.admits("ab")
    assert not updated.admits("x")
    cards = {CardKey(HERE, 1): card("a"), CardKey(THERE, 2): card("b")}
    sets, _ = worker_sets(instances(1), cards, NamespaceFilter("other"))
    assert [each.name.model for each in sets.values()] == ["b"]


def partners(
    model: str, common: str, *, at: EndpointName = HERE, first: int = 1
) -> tuple[dict[CardKey, ModelCard], list[Instance]]:
    """A prefill worker and a decode worker of a model, that need each other."""
    told = {
        first: card(model, f"p{common}", worker_type="prefill", model_type="",
                    needs=(("decode",),), partner_checksum=common),
        first + 1: card(model, f"d{common}", worker_type="decode",
                        needs=(("prefill",),), partner_checksum=common),
    }  # fmt: skip
    return {CardKey(at, each): told[each] for each in told}, instances(*told, at=at)


def meetings(found: Iterable[WorkerSet]) -> set[tuple[str, str]]:
    """Which decode set may have its prompts computed by which prefill set, by their checksums."""
    sets = list(found)
    return {
        (ours.name.checksum, theirs.name.checksum)
        for ours in sets
        for theirs in sets
        if ours.shares_requests_with(theirs)
    }


def test_prefill_and_decode_workers_are_sets_that_share_requests() -> None:
    cards, there = partners("a", "x")
    sets, refused = worker_sets(there, cards)
    assert refused == [] and meetings(sets.values()) == {("dx", "px")}
    needs = {each.card.worker_type: each.needs_prefill for each in sets.values()}
    assert needs == {"prefill": False, "decode": True}


def test_partners_are_of_one_model_one_generation_and_one_form_of_cache() -> None:
    next_one = EndpointName("dynamo-1", "backend", "generate")
    cards, there = {}, []
    for number, (model, common, at) in enumerate(
        [("a", "x", HERE), ("b", "y", HERE), ("a", "z", HERE), ("a", "x", next_one)]
    ):
        more, instances_there = partners(model, common, at=at, first=2 * number + 1)
        cards |= more
        there += instances_there
    sets, refused = worker_sets(there, cards)
    assert refused == [] and len(sets) == 8
    assert meetings(sets.values()) == {("dx", "px"), ("dy", "py"), ("dz", "pz")}
    assert all(
        ours.name.endpoint == theirs.name.endpoint
        for ours in sets.values()
        for theirs in sets.values()
        if ours.shares_requests_with(theirs)
    )


def test_decode_workers_that_need_nobody_compute_their_prompts_if_they_must() -> None:
    sets, refused = worker_sets(instances(1), {CardKey(HERE, 1): card("a", worker_type="decode")})
    (found,) = sets.values()
    assert refused == [] and not found.needs_prefill
