"""How engines hand a computed prompt over: for each connector, what both legs are sent. Pure.

The fields of a leg are those of its engine's own request: of OpenAI's body, of SGLang's /generate,
of Dynamo's. Source: the documentation of each engine, and what its servers accept.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...base.urls import joined
from ..transfer_facts import (
    BOOTSTRAP,
    MOONCAKE,
    NIXL,
    NIXL_PUSH,
    NONE,
    OPENENGINE,
    PARCEL,
    TRTLLM_SERVE,
    TransferFacts,
)

Fields = dict[str, Any]


class Meeting(NamedTuple):
    """The ids of one attempt, of which no other one has any."""

    number: int = 0
    """from 1 on, of as many bits as the connector's; its remainder by the prefill worker's ranks is
    the rank"""
    transfer_id: str = ""
    rank: int = 0
    """of the prefill worker, counted from its first"""
    parallel: tuple[int, int] = (1, 1)
    """the prefill worker's tensor and pipeline parallel sizes"""
    request_id: str = ""
    """by which both engines know the attempt"""


class Connector(NamedTuple):
    """What a pair of engines with the same connector needs."""

    shape: str
    fields: Callable[[TransferFacts, Meeting], tuple[Fields, Fields]]
    """of the prefill leg and of the decode leg; the latter's of a relay come with the parcel"""
    limits_prefill: bool = True
    """the prefill leg is a request for one token; if not, its engine ends after the prompt"""
    runs_whole: bool = True
    """workers also run whole requests; if not, each request needs a pair"""
    abort_safe: bool = True
    ends_with_prefill: bool = True
    must_read: bool = False
    """see HandoffPlan"""
    takes_queue: bool = False
    """a decode engine may have a prompt computed through the prefill queue"""
    hands_first: bool = False
    """a decode engine begins its answer with the token that the prefill engine made, which is in
    what it is handed; others make one of their own"""
    needs_address: bool = False
    """a prefill worker must say where its bootstrap server or side channel is"""
    needs_ids: bool = False
    """and by which ids its ranks are known"""
    number_bits: int = 62
    """of a meeting's number: engines take 63, and those of one that want an id of their own kind
    set the last"""


def _nothing(source: TransferFacts, meeting: Meeting) -> tuple[Fields, Fields]:
    return {}, {}


def _pulled(source: TransferFacts, meeting: Meeting) -> tuple[Fields, Fields]:
    return {"kv_transfer_params": _SENDS}, {}


def _pushed(source: TransferFacts, meeting: Meeting) -> tuple[Fields, Fields]:
    tensor, pipeline = meeting.parallel
    return {"kv_transfer_params": _SENDS}, {
        "kv_transfer_params": {
            **_TAKES,
            "remote_engine_id": _engine_id(source, meeting),
            "remote_request_id": meeting.request_id,  # without it vLLM 0.32 ends
            "remote_host": source.host,
            "remote_port": source.port + meeting.rank,
            "tp_size": tensor,
            "pp_size": pipeline,
        }
    }


def _mooncake(source: TransferFacts, meeting: Meeting) -> tuple[Fields, Fields]:
    shared = {"transfer_id": meeting.transfer_id}
    takes = {
        **_TAKES,
        **shared,
        "remote_engine_id": _engine_id(source, meeting),
        "remote_bootstrap_addr": f"http://{joined(source.host, source.port)}",
    }
    return {"kv_transfer_params": {**_SENDS, **shared}}, {"kv_transfer_params": takes}


def _met(source: TransferFacts, meeting: Meeting) -> tuple[Fields, Fields]:
    where = {
        "bootstrap_host": source.host,
        "bootstrap_port": source.port,
        "bootstrap_room": meeting.number,
    }
    return where, where


def _met_through_dynamo(source: TransferFacts, meeting: Meeting) -> tuple[Fields, Fields]:
    where, _ = _met(source, meeting)
    return {"bootstrap_info": where}, {"bootstrap_info": where, "handoff_id": meeting.transfer_id}


def _pushed_through_dynamo(source: TransferFacts, meeting: Meeting) -> tuple[Fields, Fields]:
    _, takes = _pushed(source, meeting)
    return {}, {"prefill_result": {"disaggregated_params": takes, "prompt_tokens_details": None}}


def _contexts(source: TransferFacts, meeting: Meeting) -> tuple[Fields, Fields]:
    params = {
        "request_type": "context_only",
        "disagg_request_id": meeting.number | _LEAST_TRTLLM_ID,
        "schedule_style": 0,
    }
    return {"disaggregated_params": params}, {}


def _engine_id(source: TransferFacts, meeting: Meeting) -> str:
    """Of the rank that was chosen; one id may be that of all."""
    return source.engine_ids[meeting.rank % len(source.engine_ids)]


_SENDS = {"do_remote_decode": True, "do_remote_prefill": False}
_TAKES = {"do_remote_decode": False, "do_remote_prefill": True}
_LEAST_TRTLLM_ID = 1 << 62
"""Ids below 2^40 are an engine's own."""

PARCELS = Connector("relay", _nothing, takes_queue=True, hands_first=True)
"""Of mock engines."""
_BOOTSTRAP = Connector(
    "rendezvous",
    _met,
    limits_prefill=False,
    runs_whole=False,
    ends_with_prefill=False,
    needs_address=True,
)
_READING = Connector("relay", _pulled)
_MEETING = Connector("rendezvous", _mooncake, abort_safe=False, needs_address=True, needs_ids=True)
# An engine that was asked to be written to keeps its blocks until it was: the writer goes on.
_WRITING = Connector("push", _pushed, abort_safe=False, needs_address=True, needs_ids=True)

CONNECTORS: Mapping[tuple[str, str], Connector] = {
    ("trtllm", PARCEL): PARCELS,
    ("dynamo", PARCEL): PARCELS._replace(hands_first=False),  # any engine's
    ("dynamo", BOOTSTRAP): _BOOTSTRAP._replace(fields=_met_through_dynamo, limits_prefill=True),
    ("dynamo", NIXL_PUSH): _WRITING._replace(fields=_pushed_through_dynamo),
    ("openai", NIXL): _READING,
    ("openai", NIXL_PUSH): _WRITING,
    ("openai", MOONCAKE): _MEETING,
    ("openai", BOOTSTRAP): _BOOTSTRAP,
    ("openai", TRTLLM_SERVE): Connector("relay", _contexts, hands_first=True),
    ("vllm", NIXL): _READING,
    ("vllm", NIXL_PUSH): _WRITING,
    ("vllm", MOONCAKE): _MEETING,
    # A room is an int32 of its protocol.
    ("sglang", BOOTSTRAP): _BOOTSTRAP._replace(number_bits=31),
    ("openengine", OPENENGINE): Connector(
        "relay", _nothing, runs_whole=False, abort_safe=False, must_read=True, hands_first=True
    ),
}
"""By dialect and connector."""
_USUAL = {"trtllm": PARCEL, "dynamo": PARCEL, "openai": NIXL}


def connector_name(dialect: str, facts: TransferFacts) -> str:
    """By which a worker hands over: its own word, or what is usual where it has none."""
    return facts.connector or _USUAL.get(dialect, NONE)
