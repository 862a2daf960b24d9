"""Requests that ended and records of them, for tests of what writes and what reads them."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from dynamo_router.base.errors import StatusCode
from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.admission import Objectives
from dynamo_router.router.affinity import Session
from dynamo_router.router.pairs import PairDecision
from dynamo_router.router.placement import Placement
from dynamo_router.router.policy import Decision
from dynamo_router.router.prompt import Prompt
from dynamo_router.server.dispatch import Attempt, FailedAttempt, GenerateFacts, Request
from dynamo_router.server.dispatch.retries import FailedAttempts
from dynamo_router.server.record.lines import Salt
from dynamo_router.workers.failures import Origin, judge
from dynamo_router.workers.trtllm_proto import pb

BLOCK = 16
KEY = bytes(range(16))
SALT = Salt(KEY, 100.0, 1_700_000_000.0)


class EndedRequest(NamedTuple):
    """What Recorder.put and Salt.line take of a request."""

    request: Request
    arrived: float
    ended: float
    status: str


def ended(tokens: int = 100, *, first: int = 0, **more: Any) -> EndedRequest:
    """A request that was answered with 5 tokens, 32 of its prompt cached."""
    last = pb.GenerateResponse()
    last.complete.completion_tokens, last.complete.cached_tokens = 5, 32
    prompt = more.pop("prompt", None) or Prompt(list(range(first, first + tokens)), BLOCK)
    usual: dict[str, Any] = {
        "arrived": 101.0,
        "ended": 102.0,
        "first_at": 101.25,
        "last_at": 101.65,
        "streaming": True,
        "messages": 6,
        "last_message": last.SerializeToString(),
        "decision": Decision(WorkerWithDpRank(7, 1), 0, 2, prompt.blocks, 32, "r"),
        "session": None,
        "tenant": "",
        "objectives": Objectives(500.0, 25.0),
        "queue_s": 0.05,
        "foreseen_ttft_s": (0.2, 0.1),
        "attempts": 1,
        "status": "ok",
    }
    assert not set(more) - set(usual)
    of = SimpleNamespace(**{**usual, **more})
    lost = FailedAttempt(
        1, Origin.CONNECT, judge(Origin.CONNECT, StatusCode.UNAVAILABLE, started=False), ""
    )
    request = Request(
        "r",
        b"",
        GenerateFacts("r", prompt, 0, 0, 1, of.streaming),
        of.arrived,
        Placement(prompt, "r", objectives=of.objectives, tenant=of.tenant),
        failures=FailedAttempts(9, [lost] * (of.attempts - 1)),
        session=None if of.session is None else Session(of.session),
        first_message_at=of.first_at,
        last_message=of.last_message,
        last_message_at=of.last_at,
    )
    if of.decision is not None:
        pair = PairDecision(of.decision)
        request.attempt = Attempt(
            of.decision, 7, "r", None, 101.1, None, 0, of.queue_s, 0.0, pair,
            foreseen_ttft_s=of.foreseen_ttft_s, messages=of.messages,
        )  # fmt: skip
    return EndedRequest(request, of.arrived, of.ended, of.status)


def lines_of(*paths: Path) -> tuple[list[Any], list[Any]]:
    """The headers and the requests of a record's files."""
    headers: list[Any] = []
    requests: list[Any] = []
    for path in paths:
        data = path.read_bytes()
        text = gzip.decompress(data) if path.name.partition(".gz")[1] else data
        header, *rest = map(json.loads, text.splitlines())
        headers.append(header)
        requests += rest
    return headers, requests
