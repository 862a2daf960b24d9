"""Prefill and decode engines apart: what each leg takes, holds and releases, in virtual time."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.simulation import Load, SimulationConfig, compare_policies
from dynamo_router.bench.simulation.handoffs import RoleConfig, TransferNetwork
from dynamo_router.engines.mocker import EngineConfig, Handoff, VirtualFleet
from dynamo_router.indexer.hashing import block_hashes, sequence_hashes
from dynamo_router.router.disagg import DisaggConfig

BLOCK = 16


def two_engines(blocks: int = 64) -> VirtualFleet:
    return VirtualFleet(EngineConfig(block_size=BLOCK, num_gpu_blocks=blocks), 2)


def submit(
    fleet: VirtualFleet, worker: int, request: int, output: int, handoff: Handoff, now: float
) -> None:
    tokens = [request * 1000 + i for i in range(10 * BLOCK + output)]
    local = block_hashes(tokens, BLOCK)
    fleet.submit(
        worker,
        request,
        prompt_tokens=10 * BLOCK,
        output_tokens=output,
        local_hashes=local,
        sequence_hashes=sequence_hashes(local),
        now=now,
        handoff=handoff,
    )


def test_a_prompt_is_kept_until_it_is_read_and_not_computed_again() -> None:
    fleet = two_engines()
    submit(fleet, 0, 1, 1, Handoff.HANDS_OVER, 0.0)
    fleet.advance(math.inf, to_answer=True)
    assert fleet.take_emissions().kinds.tolist() == [3]
    assert fleet.pools(0) == (10, 0), "held for the reader"
    submit(fleet, 1, 1, 5, Handoff.HANDED_OVER, 1.0)
    assert fleet.advance(math.inf, to_answer=True) == 1.0
    assert fleet.take_emissions().kinds.tolist() == [4]
    assert fleet.pools(1) == (10, 0), "allocated before the transfer"
    assert fleet.cached_blocks(1) == [], "nothing has come yet"
    assert fleet.advance(9.0) == 9.0 and not len(fleet.take_emissions().times)
    fleet.settle_handoff(1, 1, Handoff.ARRIVING, 9.0)
    fleet.settle_handoff(0, 1, Handoff.HANDS_OVER, 9.0)
    assert fleet.pools(0) == (0, 10), "cached, and held by no request"
    fleet.advance(math.inf)
    first, last = fleet.take_emissions().times
    assert first - 9.0 < 0.5 * (last - 9.0), "its first token takes one step, as any other"
    assert fleet.pools(1)[0] == 0 and len(fleet.cached_blocks(1)) == 10
    with pytest.raises(KeyError):
        fleet.settle_handoff(0, 1, Handoff.HANDS_OVER, 10.0)


def test_an_engine_whose_blocks_are_all_held_waits_without_end_and_goes_on() -> None:
    fleet = two_engines(blocks=15)
    submit(fleet, 0, 1, 1, Handoff.HANDS_OVER, 0.0)
    submit(fleet, 0, 2, 1, Handoff.HANDS_OVER, 0.0)
    fleet.advance(math.inf)
    assert fleet.take_emissions().requests.tolist() == [1]
    assert fleet.is_busy and fleet.pools(0) == (10, 0)
    fleet.settle_handoff(0, 1, Handoff.HANDS_OVER, 5.0)
    fleet.advance(math.inf)
    assert fleet.take_emissions().requests.tolist() == [2]


def test_a_request_that_finds_no_capacity_holds_nothing_until_it_does() -> None:
    fleet = two_engines(blocks=15)
    for request in (1, 2):
        submit(fleet, 1, request, 1, Handoff.HANDED_OVER, 0.0)
    fleet.advance(math.inf, to_answer=True)
    assert fleet.take_emissions().requests.tolist() == [1]
    fleet.settle_handoff(1, 1, Handoff.ARRIVING, 3.0)
    fleet.advance(math.inf)
    assert fleet.take_emissions().requests.tolist() == [1, 2], "answered, then given its blocks"


def test_a_prompt_that_came_decodes_before_a_request_that_was_preempted_for_its_blocks() -> None:
    fleet, now = two_engines(blocks=22), 0.0
    submit(fleet, 0, 1, 40, Handoff.NONE, 0.0)
    submit(fleet, 0, 2, 20, Handoff.HANDED_OVER, 0.0)
    while fleet.stats()[0].steps < 33:  # in the last step before the first one needs a 13th block
        now = fleet.advance(now + 0.001)
    assert fleet.pools(0) == (22, 0)
    fleet.settle_handoff(0, 2, Handoff.ARRIVING, now)
    fleet.take_emissions()
    fleet.advance(math.inf)
    emissions = fleet.take_emissions()
    assert emissions.requests.tolist() == [2, 2, 1] and emissions.preemptions.tolist() == [0, 0, 1]
    assert not fleet.is_busy and fleet.pools(0)[0] == 0


def test_a_prompt_as_long_as_the_cache_is_taken_over_by_an_idle_engine() -> None:
    fleet = VirtualFleet(EngineConfig(block_size=BLOCK, num_gpu_blocks=11, watermark=0.2), 1)
    submit(fleet, 0, 1, 1, Handoff.HANDED_OVER, 0.0)
    fleet.advance(math.inf)
    assert fleet.take_emissions().kinds.tolist() == [4]
    fleet.settle_handoff(0, 1, Handoff.ARRIVING, 1.0)
    fleet.advance(math.inf)
    assert fleet.take_emissions().kinds.tolist() == [3] and fleet.pools(0)[0] == 0


sizes = st.floats(1, 1e9)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(3, 5), sizes), min_size=1, max_size=12))
def test_transfers_share_cards_and_none_is_faster_than_its_card(
    transfers: list[tuple[int, int, float]],
) -> None:
    network, now, ended = TransferNetwork(1e9), 0.0, {}
    for key, (source, target, size) in enumerate(transfers):
        network.start(key, source, target, size, 0.0)
    while len(network):
        now = network.next_time
        ended |= dict.fromkeys(network.finish(now), now)
    assert network.next_time == math.inf and len(ended) == len(transfers)
    for end in range(6):
        mine = [k for k, each in enumerate(transfers) if end in each[:2]]
        if mine:  # a card has sent all of its bytes no sooner than it can
            total = sum(transfers[key][2] for key in mine)
            assert max(ended[key] for key in mine) >= total / 1e9 * (1 - 1e-6)
    assert all(ended[k] >= each[2] / 1e9 * (1 - 1e-6) for k, each in enumerate(transfers))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            f'{{"timestamp": {i * 120}, "input_length": {512 * (1 + i % 9)}, "output_length": 60,'
            f' "hash_ids": {list(range(i * 20, i * 20 + 1 + i % 9))}}}\n'
            for i in range(120)
        )
    )
    return str(path)


@pytest.mark.parametrize("mode", ["always", "conditional"])
@pytest.mark.parametrize("blocks", [16384, 96])
@pytest.mark.parametrize("policies", ["kv", "dynamo:1", "round-robin"])
def test_every_request_is_answered_once(trace: str, mode: str, blocks: int, policies: str) -> None:
    config = SimulationConfig(
        num_gpu_blocks=blocks,
        roles=RoleConfig(prefill_workers=2, decode_workers=1),
        disagg=DisaggConfig(disagg=mode),
    )
    run, again = (
        compare_policies(config, Load(trace=trace), workers=0, names=policies)[0] for _ in range(2)
    )
    assert (run.errors, run.rejected) == (0, 0) and run.workers == 3
    assert run.details["output_tokens"] == 120 * 60
    if mode == "always":
        assert run.remote_prefill_share == 1.0
        assert run.transfer_ms.mean is not None and run.transfer_ms.mean > 0
        assert run.handoff_ms.mean is not None and run.handoff_ms.mean > run.transfer_ms.mean
    assert run == again


def test_off_is_the_same_number_of_engines_that_run_whole_requests(trace: str) -> None:
    off = SimulationConfig(
        roles=RoleConfig(prefill_workers=2, decode_workers=1), disagg=DisaggConfig(disagg="off")
    )
    one = compare_policies(off, Load(trace=trace), workers=1, names="kv")[0]
    two = compare_policies(SimulationConfig(), Load(trace=trace), workers=4, names="kv")[0]
    assert (one.ttft_ms, one.itl_ms, one.workers) == (two.ttft_ms, two.itl_ms, 4)
    assert one.remote_prefill_share == 0.0 and one.handoff_ms.mean is None


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("engine", {"engine": "classic"}),
        ("dp_size", {"dp_size": 2}),
        ("event_loss", {"event_loss": 0.1}),
    ],
)
def test_what_roles_do_not_go_with_is_named(key: str, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        SimulationConfig(
            roles=RoleConfig(prefill_workers=1, decode_workers=1),
            **settings,  # type: ignore[arg-type]  # several kinds
        )
    assert caught.value.key == key


def test_flags_of_a_decision_need_roles_and_roles_each_other() -> None:
    with pytest.raises(ConfigError):
        SimulationConfig(disagg=DisaggConfig(disagg="always"))
    with pytest.raises(ConfigError):
        RoleConfig(prefill_workers=1)


def test_the_prefill_engines_token_comes_before_the_hand_off_which_is_a_gap(trace: str) -> None:
    decode, prefill = (
        compare_policies(
            SimulationConfig(
                roles=RoleConfig(prefill_workers=2, decode_workers=2, first_token=whose),
                disagg=DisaggConfig(disagg="always"),
            ),
            Load(trace=trace),
            workers=0,
            names="kv",
        )[0]
        for whose in ("decode", "prefill")
    )
    assert decode.ttft_ms.mean is not None and prefill.ttft_ms.mean is not None
    assert prefill.handoff_ms.mean is not None and prefill.handoff_ms.p90 is not None
    assert decode.ttft_ms.mean - prefill.ttft_ms.mean > 0.5 * prefill.handoff_ms.mean
    # A gap of each answer's 59: the longest of them.
    assert prefill.itl_ms.p99 is not None and decode.itl_ms.p99 is not None
    assert prefill.itl_ms.p99 > 0.5 * prefill.handoff_ms.mean > decode.itl_ms.p99
    assert prefill.e2e_ms.mean == pytest.approx(decode.e2e_ms.mean, rel=0.1), "it is no faster"
    with pytest.raises(ConfigError, match="first_token"):
        RoleConfig(first_token="both")


def test_an_answer_of_one_token_ends_with_the_prefill_engines(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text(
        "".join(
            f'{{"timestamp": {i * 500}, "input_length": 512, "output_length": 1,'
            f' "hash_ids": [{i}]}}\n'
            for i in range(20)
        )
    )
    roles = RoleConfig(prefill_workers=1, decode_workers=1, first_token="prefill")
    config = SimulationConfig(roles=roles, disagg=DisaggConfig(disagg="always"))
    (run,) = compare_policies(config, Load(trace=str(path)), workers=0, names="kv")
    assert (run.errors, run.rejected, run.remote_prefill_share) == (0, 0, 1.0)
    assert run.details["output_tokens"] == 20
    assert run.ttft_ms.mean is not None and run.e2e_ms == run.ttft_ms, "no second token is made"
    assert run.itl_ms.mean is None and run.handoff_ms.mean is None
