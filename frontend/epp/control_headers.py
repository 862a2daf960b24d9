"""Headers by which clients and gateways say how a request is to be picked; none goes on to engines.

Names are those of the Gateway API Inference Extension, of llm-d today, and of Dynamo.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...router.admission import SLO_ITL_KEY, SLO_TTFT_KEY
from ...server.services import PRIORITY_KEY
from ..openai import ApiError
from .endpoints import (
    INSTANCE_KEY,
    PREFILL_INSTANCE_KEY,
    PREFILL_RANK_KEY,
    PREFILLER,
    RANK_KEY,
    ROUTING_MODE_KEY,
)
from .exchange import DESTINATION, SERVED, SUBSET
from .objectives import ObjectiveView
from .requests import LONGEST_NAME

DROPPED_REASON = "x-llm-d-request-dropped-reason"
_REWRITES = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
_FAIRNESS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
_OBJECTIVES = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
_MEANS = {
    **dict.fromkeys(_FAIRNESS, "x-tenant-id"),
    **dict.fromkeys(("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"), SLO_TTFT_KEY),
    **dict.fromkeys(("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"), SLO_ITL_KEY),
    "x-dynamo-request-priority": PRIORITY_KEY,
}
"""Names of others for what we know under one of our own."""
_PICKERS_OWN = (
    DESTINATION,
    SERVED,
    SUBSET,
    f"{DESTINATION}-scores",
    PREFILLER,
    PREFILL_INSTANCE_KEY,
    PREFILL_RANK_KEY,
    ROUTING_MODE_KEY,
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
    "x-kv-cache-source-host-port",
    DROPPED_REASON,
)
"""Only a picker, or Envoy, has anything to say by them: a client could have its request, or a
transfer of blocks, sent to any address."""
_STRIPPED = frozenset(
    (
        *_PICKERS_OWN,
        *_REWRITES,
        *_MEANS,
        *_MEANS.values(),
        *_OBJECTIVES,
        "x-dynamo-priority-jump",
        INSTANCE_KEY,
        RANK_KEY,
    )
)


class Asked(NamedTuple):
    """What the headers of a request say of its way."""

    metadata: Sequence[tuple[str, str]]
    """under our own names, with all other headers"""
    remove: Sequence[str]
    """names that are not to reach the engine"""
    model: str
    """that the body is to name; empty: the one that it names"""


def read_control(headers: Mapping[str, str], objectives: ObjectiveView | None = None) -> Asked:
    """ApiError 400 for a model name that is none. An objective that is not known says nothing."""
    present = _STRIPPED.intersection(headers)
    model = next((headers[name] for name in _REWRITES if headers.get(name)), "")
    if len(model.encode()) > LONGEST_NAME or not model.isprintable():
        raise ApiError(400, f"{_REWRITES[0]} is no name of a model")
    remove = sorted(present - {DESTINATION})  # which is set anew
    if not present:
        return Asked(tuple(headers.items()), (), "")
    kept = {name: value for name, value in headers.items() if name not in _PICKERS_OWN}
    for name, meaning in _MEANS.items():
        if name in kept and (value := kept.pop(name)):
            kept.setdefault(meaning, value)
    for name in _OBJECTIVES:
        if objectives is not None and (value := kept.pop(name, "")):
            priority = objectives.priority(value)
            if priority is not None:
                kept.setdefault(PRIORITY_KEY, str(priority))
    return Asked(tuple(kept.items()), remove, model)
