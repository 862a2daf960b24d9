"""A fleet's facts as one engine's, and what they say about a prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.workers.engine_facts import EngineFacts, facts_of, merge_facts
from dynamo_router.workers.trtllm_proto import pb


def test_facts_are_read_and_told_again() -> None:
    model = pb.GetModelInfoResponse(
        model_id="m", max_input_len=10, vocab_size=5, supported_features=["a", "kv_block_size=64"]
    )
    server = pb.GetServerInfoResponse(version="1.3", backend="pytorch", world_size=8)
    facts = facts_of(model, server)
    assert facts.settings == {"kv_block_size": 64}
    assert facts.as_message(pb.GetModelInfoResponse) == model
    assert facts.as_message(pb.GetServerInfoResponse) == server


def test_negative_limits_are_no_limits() -> None:
    facts = facts_of(pb.GetModelInfoResponse(max_input_len=-1), pb.GetServerInfoResponse())
    assert facts.max_input_len == 0


def test_a_fleet_has_the_largest_limits_and_the_sum_of_capacities() -> None:
    merged = merge_facts(
        [
            EngineFacts(model_id="m", max_input_len=100, vocab_size=0, max_batch_size=4),
            EngineFacts(model_id="m", max_input_len=50, vocab_size=32000, max_batch_size=8),
            EngineFacts(model_id="m", max_input_len=0, max_seq_len=70),
        ]
    )
    assert (merged.model_id, merged.max_input_len, merged.vocab_size) == ("m", 100, 32000)
    assert (merged.max_seq_len, merged.max_batch_size) == (70, 12)


def test_a_fleet_can_what_all_can() -> None:
    one = facts_of(
        pb.GetModelInfoResponse(
            supported_features=["lora", "kv_block_size=64", "total_kv_blocks=10", "odd=1"]
        ),
        pb.GetServerInfoResponse(),
    )
    two = facts_of(
        pb.GetModelInfoResponse(
            supported_features=["x", "kv_block_size=64", "lora", "total_kv_blocks=5"]
        ),
        pb.GetServerInfoResponse(),
    )
    merged = merge_facts([one, two])
    assert merged.supported_features == ("lora", "kv_block_size=64", "total_kv_blocks=15")
    assert merged.settings == {"kv_block_size": 64, "total_kv_blocks": 15}


NAMES = st.sampled_from(["total_kv_blocks", "max_num_seqs", "kv_block_size", "odd"])
FACTS = st.builds(
    EngineFacts,
    model_id=st.sampled_from(["", "m", "n"]),
    max_input_len=st.integers(0, 3),
    vocab_size=st.integers(0, 3),
    max_batch_size=st.integers(0, 3),
    world_size=st.integers(0, 3),
    supported_features=st.lists(st.sampled_from("abc"), unique=True).map(tuple),
    settings=st.dictionaries(NAMES, st.integers(0, 2)),
)


@given(st.lists(FACTS, min_size=1, max_size=6))
def test_a_fleet_s_facts_are_those_of_its_engines(fleet: list[EngineFacts]) -> None:
    merged = merge_facts(fleet)
    for limit in ("max_input_len", "max_seq_len", "vocab_size"):
        assert getattr(merged, limit) == max(getattr(engine, limit) for engine in fleet)
    for capacity in ("max_batch_size", "world_size"):
        assert getattr(merged, capacity) == sum(getattr(engine, capacity) for engine in fleet)
    assert merged.model_id == ([e.model_id for e in fleet if e.model_id] or [""])[0]
    for name in ("total_kv_blocks", "max_num_seqs", "kv_block_size", "odd"):
        told = [engine.settings.get(name) for engine in fleet]
        numbers = [n for n in told if n is not None]
        summed = name in ("total_kv_blocks", "max_num_seqs")
        if len(numbers) == len(fleet) and (summed or len(set(numbers)) == 1):
            assert merged.settings[name] == (sum(numbers) if summed else numbers[0])
        else:
            assert name not in merged.settings
    of_all = set.intersection(*(set(engine.supported_features) for engine in fleet))
    assert of_all == {feature for feature in merged.supported_features if "=" not in feature}


def test_nobody_says_nothing() -> None:
    assert merge_facts([]) == EngineFacts()
    assert EngineFacts().check_prompt(10**9, 2**32 - 1) is None


@pytest.mark.parametrize(
    ("length", "largest", "text"),
    [
        (100, 999, None),
        (101, 5, "a prompt of 101 tokens is longer than the model's limit of 100"),
        (5, 1000, "token id 1000 is out of range: the model's vocabulary has 1000 tokens"),
    ],
)
def test_prompts_are_checked(length: int, largest: int, text: str | None) -> None:
    facts = EngineFacts(max_input_len=100, max_seq_len=120, vocab_size=1000)
    assert facts.check_prompt(length, largest) == text


def test_the_sequence_limit_counts_where_no_input_limit_is_known() -> None:
    assert EngineFacts(max_seq_len=10).check_prompt(11, 1) is not None
