"""Which workers hand prompts over to each other, and why others do not."""

from dataclasses import replace
from typing import Any

import pytest

from dynamo_router.workers.engine_facts import EngineFacts
from dynamo_router.workers.handoffs import Half, fit
from dynamo_router.workers.transfer_facts import (
    BOOTSTRAP,
    MOONCAKE,
    NIXL,
    NIXL_PUSH,
    NONE,
    TransferFacts,
)

SERVER = {"host": "10.0.0.1", "port": 8998}


def half(name: str, dialect: str = "openai", connector: str = "", **more: Any) -> Half:
    of_transfer = {"role", "host", "port", "engine_ids", "block_size", "cache_type", "pairing"}
    transfer = {key: more.pop(key) for key in list(more) if key in of_transfer}
    return Half(
        name, dialect, EngineFacts(transfer=TransferFacts(connector=connector, **transfer), **more)
    )


def shape(source: Half, target: Half) -> str:
    found = fit([source], [target])
    assert found is not None and found.connector is not None, found
    return found.connector.shape


def why(*halves: Half) -> str:
    source, *targets = halves
    found = fit([source], targets)
    assert found is not None and found.connector is None
    return found.refusal


def test_what_a_pair_needs_follows_from_what_its_workers_state() -> None:
    assert shape(half("p", "trtllm"), half("d", "trtllm")) == "relay"
    assert shape(half("p"), half("d")) == "relay"
    assert shape(half("p", connector=NIXL), half("d")) == "relay"
    assert shape(half("p", "dynamo", BOOTSTRAP, **SERVER), half("d", "dynamo")) == "rendezvous"
    pushing = half("p", connector=NIXL_PUSH, engine_ids=("e",), **SERVER)
    assert shape(pushing, half("d", connector=NIXL_PUSH)) == "push"
    assert shape(half("p", "vllm", NIXL), half("d", "vllm", NIXL)) == "relay"
    meeting = half("p", "sglang", BOOTSTRAP, **SERVER), half("d", "sglang", BOOTSTRAP)
    assert shape(*meeting) == "rendezvous"


def test_nothing_is_known_of_an_empty_half() -> None:
    assert fit([], [half("d")]) is None and fit([half("p")], []) is None


@pytest.mark.parametrize(
    "source, target, reason",
    [
        (half("p"), half("d", "dynamo"), "prefill worker p speaks openai, decode worker d dynamo"),
        (
            half("p", connector=NIXL),
            half("d", connector=MOONCAKE),
            "p hands over by nixl, d by mooncake",
        ),
        (half("p", connector=NONE), half("d"), "workers that speak openai hand nothing over"),
        (half("p", "trtllm", BOOTSTRAP), half("d", "trtllm"), "hand nothing over by bootstrap"),
        (half("p", connector=BOOTSTRAP), half("d"), "p states no address"),
        (half("p", connector=MOONCAKE, **SERVER), half("d"), "p states no engine id"),
        (half("p", role="decode"), half("d"), "p is a decode worker, not a prefill worker"),
        (half("p"), half("d", role="prefill"), "d is a prefill worker, not a decode worker"),
        (half("p", version="1"), half("d", version="2"), "the build of p is 1, of d 2"),
        (
            half("p", cache_type="fp8"),
            half("d", cache_type="auto"),
            "the type of the KV cache of p",
        ),
        (half("p", pairing="a"), half("d", pairing="b"), "the pairing protocol of p is a, of d b"),
        (
            half("p", "vllm", "LMCacheConnectorV1"),
            half("d", "vllm", "LMCacheConnectorV1"),
            "workers that speak vllm hand nothing over by LMCacheConnectorV1",
        ),
        (
            half("p", "vllm", NIXL),
            half("d"),
            "prefill worker p speaks vllm, decode worker d openai",
        ),
        (
            half("p", block_size=16),
            half("d", block_size=64),
            "the block size of p is 16, of d 64",
        ),
        (
            half("p", tensor_parallel_size=4),
            half("d", tensor_parallel_size=6),
            "the tensor parallel size of p is 4, of d 6",
        ),
        (
            half("p", pipeline_parallel_size=1),
            half("d", pipeline_parallel_size=2),
            "the pipeline parallel size of p is 1, of d 2",
        ),
    ],
)
def test_halves_that_do_not_fit_are_refused_by_name(
    source: Half, target: Half, reason: str
) -> None:
    assert reason in why(source, target)


def test_one_worker_that_differs_is_enough() -> None:
    first, second = half("p", version="1"), half("d1", version="1")
    assert why(first, second, replace_version(second, "d2", "2")).endswith("of d2 2")
    mixed = half("d2", connector=MOONCAKE)
    assert "mooncake and by nixl" in why(half("p"), half("d1"), mixed)


def replace_version(other: Half, name: str, version: str) -> Half:
    return other._replace(name=name, facts=replace(other.facts, version=version))


def test_layouts_of_which_one_divides_the_other_fit() -> None:
    source = half("p", tensor_parallel_size=2)
    assert shape(source, half("d", tensor_parallel_size=8)) == "relay"
    assert shape(half("p", tensor_parallel_size=8), half("d", tensor_parallel_size=2)) == "relay"
