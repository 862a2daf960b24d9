"""What a worker's card says of its hand-offs, as Dynamo's workers publish it."""

from typing import Any

import msgspec
import pytest

from dynamo_router.runtime.kv_stores import Entry
from dynamo_router.workers.records.model_card import decode_card
from dynamo_router.workers.transfer_facts import BOOTSTRAP, NIXL_PUSH, TransferFacts


def card(kind: str = "prefill", **runtime: Any) -> Any:
    fields = {
        "display_name": "m",
        "kv_cache_block_size": 16,
        "worker_type": kind,
        "runtime_config": runtime,
    }
    value = msgspec.json.encode({"card_json": fields})
    return decode_card(Entry("v1/mdc/a/b/c/1", value, 1))


def test_a_bootstrap_server() -> None:
    server = {"bootstrap_host": "10.0.0.5", "bootstrap_port": 8998}
    facts = card(disaggregated_endpoint=server).facts
    assert facts.transfer == TransferFacts(
        connector=BOOTSTRAP, role="prefill", host="10.0.0.5", port=8998
    )


@pytest.mark.parametrize("server", [None, {}, {"bootstrap_host": "h"}, {"bootstrap_port": 1}])
def test_without_one_a_parcel_is_usual(server: Any) -> None:
    assert card(disaggregated_endpoint=server).transfer == TransferFacts(role="prefill")


def test_an_engine_that_writes() -> None:
    push = {
        "engine_id": "e", "host": "10.0.0.5", "port": 5600,
        "tensor_parallel_size": 4, "pipeline_parallel_size": 2,
    }  # fmt: skip
    facts = card(nixl_push=push).facts
    assert facts.transfer == TransferFacts(
        connector=NIXL_PUSH, role="prefill", host="10.0.0.5", port=5600, engine_ids=("e",)
    )
    assert (facts.tensor_parallel_size, facts.pipeline_parallel_size) == (4, 2)


def test_who_runs_whole_requests_has_no_role() -> None:
    assert card("aggregated").transfer == TransferFacts()


@pytest.mark.parametrize(
    "runtime",
    [
        {"disaggregated_endpoint": {"bootstrap_host": "h", "bootstrap_port": 70000}},
        {"nixl_push": {"engine_id": "e", "host": "h", "port": 0}},
        {"nixl_push": {"engine_id": "e"}},
    ],
)
def test_what_cannot_be_makes_no_card(runtime: Any) -> None:
    with pytest.raises(ValueError, match="not a model card"):
        card(**runtime)
