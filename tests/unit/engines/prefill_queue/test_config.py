"""PrefillQueueConfig, and engines that cannot take part."""

from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.engines.mocker.config import MockerConfig
from dynamo_router.engines.prefill_queue import PrefillQueueConfig
from dynamo_router.engines.transfer import TransferConfig
from dynamo_router.server.request_limits import HandoffLimits


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("prefill_queue_scope", "all", "'all' is not one of pool, namespace"),
        ("prefill_queue_storage", "disk", "'disk' is not one of memory, file"),
        ("prefill_queue_max_messages", 0, "0 must be at least 1"),
        ("prefill_queue_max_deliver", 0, "0 must be at least 1"),
        ("prefill_queue_slots", 0, "0 must be at least 1"),
        ("max_local_prefill_length", -1, "-1 must be at least 0"),
        ("max_prefill_queue_size", -1, "-1 must be at least 0"),
        ("prefill_queue_ack_wait_s", 0.0, "0.0 must be finite and greater than 0"),
        ("prefill_queue_timeout_s", float("inf"), "inf must be finite and greater than 0"),
        ("prefill_queue_max_age_s", -1.0, "-1.0 must be finite and greater than 0"),
    ],
)
def test_a_bad_value_is_refused_by_name(key: str, value: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: {text}"):
        PrefillQueueConfig(**{key: value})


def test_engines_of_both_roles_and_without_transfer_take_no_part() -> None:
    queue = PrefillQueueConfig(prefill_queue=True)
    with pytest.raises(ConfigError, match="disaggregation-mode prefill or decode"):
        MockerConfig(queue=queue, moves=TransferConfig(transfer="none"))
    with pytest.raises(ConfigError, match=r"needs a way by which blocks move \(--transfer\)"):
        MockerConfig(queue=queue, disaggregation_mode="decode")


def test_handoffs_are_named() -> None:
    with pytest.raises(ConfigError, match="disagg_handoff: 'post' is not one of relay, queue"):
        HandoffLimits(disagg_handoff="post")
    with pytest.raises(ConfigError, match="max_local_prefill_length: -1 must be at least 0"):
        HandoffLimits(max_local_prefill_length=-1)
