"""Requests that ended and records of them, for tests of what writes and what reads them."""

import gzip
import json
from pathlib import Path
from typing import Any

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.router.policy import Decision
from dynamo_router.router.prompt import Prompt
from dynamo_router.server.record.lines import EndedRequest, Salt
from dynamo_router.workers.trtllm_proto import pb

BLOCK = 16
KEY = bytes(range(16))
SALT = Salt(KEY, 100.0, 1_700_000_000.0)


def ended(tokens: int = 100, *, first: int = 0, **more: Any) -> EndedRequest:
    """A request that was answered with 5 tokens, 32 of its prompt cached."""
    last = pb.GenerateResponse()
    last.complete.completion_tokens, last.complete.cached_tokens = 5, 32
    prompt = Prompt(list(range(first, first + tokens)), BLOCK)
    usual: dict[str, Any] = {
        "arrived": 101.0,
        "ended": 102.0,
        "first_at": 101.25,
        "last_at": 101.65,
        "prompt": prompt,
        "streaming": True,
        "messages": 6,
        "last_message": last.SerializeToString(),
        "decision": Decision(WorkerWithDpRank(7, 1), 0, 2, prompt.blocks, 32, "r"),
        "worker": "7/1",
        "session": "",
        "tenant": "",
        "ttft_objective_ms": 500.0,
        "itl_objective_ms": 25.0,
        "queue_s": 0.05,
        "sent_at": 101.1,
        "foreseen_ttft_s": 0.2,
        "soonest_ttft_s": 0.1,
        "attempts": 1,
        "status": "ok",
    }
    return EndedRequest(**{**usual, **more})


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
