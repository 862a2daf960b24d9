"""A fleet's facts as one engine's, and what they say about a prompt."""

import pytest

from dynamo_router.workers.engine_facts import EngineFacts, facts_of, merge_facts
from dynamo_router.workers.trtllm_proto import pb


def test_facts_are_read_and_told_again() -> None:
    model = pb.GetModelInfoResponse(
        model_id="m", max_input_len=10, vocab_size=5, supported_features=["a", "kv_block_size=64"]
    )
    server = pb.GetServerInfoResponse(version="1.3", backend="pytorch", world_size=8)
    facts = facts_of(model, server)
    assert facts.settings == {"kv_block_size": 64}
    assert facts.model_info() == model
    assert facts.server_info() == server


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
