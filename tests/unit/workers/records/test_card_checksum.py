"""Cards and their checksums as Dynamo 1.6.1 has them: the same bits, for each field."""

import json
from typing import Any

import pytest
from support.places import VECTORS

from dynamo_router.runtime.components import EndpointName
from dynamo_router.runtime.kv_stores import Entry
from dynamo_router.workers.records import ModelCard, adapter_id, decode_card, encode_card
from dynamo_router.workers.records.card_checksum import (
    card_checksum,
    partner_checksum,
)

RECORDED = json.loads((VECTORS / "model_card_checksums.json").read_text())
NAME = EndpointName("dynamo", "backend", "generate")


def card_named(name: str) -> dict[str, Any]:
    found = (each["card_json"] for each in RECORDED if each["card_json"]["display_name"] == name)
    return dict(next(found))


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: each["card_json"]["display_name"])
def test_the_checksum_is_theirs(recorded: dict[str, Any]) -> None:
    assert card_checksum(recorded["card_json"]) == recorded["checksum"]


def test_prefill_and_decode_workers_of_a_generation_have_one_in_common() -> None:
    common = {"display_name": "m", "kv_cache_block_size": 16, "source_path": "/a"}
    prefill = {**common, "worker_type": "prefill", "needs": [["decode"]]}
    decode = {
        **common,
        "worker_type": "decode",
        "needs": [["prefill"]],
        "aliases": ["n"],
        "source_path": "/b",
        "context_length": 9,
        "runtime_config": {"context_length": 10, "total_kv_blocks": 3},
    }
    assert card_checksum(prefill) != card_checksum(decode)
    assert partner_checksum(prefill) == partner_checksum(decode)
    for other in ({"display_name": "k"}, {"kv_cache_block_size": 32}, {"router_config": {}}):
        assert partner_checksum({**prefill, **other}) != partner_checksum(decode)


def test_what_may_differ_between_workers_is_not_in_it() -> None:
    card = card_named("plain")
    before = card_checksum(card)
    assert len(before) == 64
    own = {"migration_limit": 3, "user_data": {"a": 1}, "slug": "other", "model_type": "Chat"}
    assert card_checksum({**card, **own}) == before
    runtime = {**card["runtime_config"], "data_parallel_size": 4, "total_kv_blocks": 7}
    assert card_checksum({**card, "runtime_config": runtime}) == before


@pytest.mark.parametrize(
    "other",
    [{"prompt_context": ["x"]}, {"router_config": {"a": 1}}, {"indexer_identity": "i"},
     {"kv_cache_block_size": 17}, {"worker_type": "decode"}, {"needs": [["decode"]]},
     {"aliases": ["x"]}, {"aliases": ["x", "y"]}, {"source_path": "/elsewhere"}],
)  # fmt: skip
def test_what_must_be_equal_is_in_it(other: dict[str, Any]) -> None:
    card = card_named("plain")
    assert card_checksum({**card, **other}) != card_checksum(card)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: each["card_json"]["display_name"])
def test_each_recorded_card_is_read(recorded: dict[str, Any]) -> None:
    said = recorded["card_json"]
    card = decode_card(Entry("a/b/c/1", json.dumps({"card_json": said}).encode(), 1))
    assert card.name == said["display_name"]
    assert card.aliases == tuple(said.get("aliases", ()))
    assert card.model_type == said["model_type"]
    parts = [file.part for file in card.files]
    assert parts[:3] == ["model_info", "tokenizer", "prompt_formatter"]
    assert card.files[1].path == "/models/tiny/tokenizer.json"
    assert card.files[1].checksum.startswith("blake3:")


def test_the_longest_sequence_is_said_in_three_places() -> None:
    lengths = {name: context_of(name) for name in ("plain", "ctx", "arch", "rtctx")}
    assert lengths == {"plain": 0, "ctx": 4096, "arch": 8192, "rtctx": 2048}


def context_of(name: str) -> int:
    value = json.dumps({"card_json": card_named(name)}).encode()
    return decode_card(Entry("a/b/c/1", value, 1)).context_length


def test_a_card_of_an_adapter_stands_below_that_of_its_model() -> None:
    card = ModelCard("base", 16, adapter="My Adapter", aliases=("b",))
    _, key, value = encode_card(card, NAME, 255)
    assert key == "dynamo/backend/generate/ff/my-adapter"
    read = decode_card(Entry(key, value, 1))
    assert (read.name, read.adapter, read.aliases) == ("base", "My Adapter", ("b",))


@pytest.mark.parametrize(("name", "number"), [("abc", 944132403), ("my-adapter", 2122543330)])
def test_adapters_have_the_numbers_that_dynamo_gives_them(name: str, number: int) -> None:
    assert adapter_id(name) == number


def test_what_their_reader_asks_for_is_in_ours() -> None:
    """A card without one of these is rejected."""
    _, _, value = encode_card(ModelCard("ours", 16), NAME, 1)
    theirs = set(card_named("plain")) - {"source_path", "model_info", "tokenizer",
                                         "prompt_formatter", "gen_config"}  # fmt: skip
    assert theirs <= set(json.loads(value)["card_json"])
