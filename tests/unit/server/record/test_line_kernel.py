"""The kernel that writes a line, beside JSON as the standard library makes it."""

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.observability.recorded import SALT, EndedRequest, ended

from dynamo_router.base.identity import WorkerWithDpRank
from dynamo_router.bench.traces import RecordedRequest
from dynamo_router.router.admission import Objectives
from dynamo_router.router.policy import Decision
from dynamo_router.server.record_format import MOST_TOKENS
from dynamo_router.workers.trtllm_proto import pb

counts = st.integers(0, 2**31)
few = st.integers(0, MOST_TOKENS)
seconds = st.floats(-1e6, 1e6)
each = st.one_of(seconds, st.sampled_from([math.nan, math.inf, 0.0]))
foreseen = st.none() | st.tuples(each, each)
limits = st.none() | st.floats(0.001, 1e9)
plain = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters='"\\'))
decisions = st.builds(
    Decision,
    st.builds(WorkerWithDpRank, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)),
    st.just(0),
    st.just(0),
    st.just(9),
    counts,
    st.none(),
    st.integers(0, 99),
    st.integers(0, 99),
)


def milliseconds(value: float | None) -> float | None:
    """To three decimals, halves away from 0."""
    if value is None or not math.isfinite(value):
        return None
    us = value * 1e6
    return int(us + 0.5 if us >= 0 else us - 0.5) / 1e3


def expected(said: EndedRequest) -> dict[str, object]:
    """What the line of a request is to have, None where it has no field."""
    request, arrived = said.request, said.arrived
    facts, attempt, placement = request.facts, request.attempt, request.placement
    last = pb.GenerateResponse.FromString(request.last_message).complete
    counted = last.completion_tokens if last.completion_tokens <= MOST_TOKENS else 0
    output = counted or (request.messages if facts.streaming else 0)
    first_at = request.first_message_at
    ttft = itl = engine_ttft = None
    if first_at is not None and facts.streaming:
        ttft = first_at - arrived
        engine_ttft = None if attempt is None else first_at - attempt.sent_at
        itl = (request.last_message_at - first_at) / (output - 1) if output > 1 else None
    found: dict[str, object] = {
        "timestamp": milliseconds(max(0.0, arrived - SALT.began_at)),
        "input_length": facts.prompt.isl,
        "output_length": output,
        "status": said.status or None,
        "session_id": SALT.name(request.session.key) if request.session else None,
        "tenant": SALT.name(placement.tenant) if placement.tenant else None,
    }
    if attempt is not None:
        chosen = attempt.decision
        lower = chosen.host_overlap_blocks + chosen.disk_overlap_blocks
        cached = chosen.cached_tokens + lower * facts.prompt.block_size
        worker_id, rank = chosen.worker
        found["worker"] = f"{worker_id}/{rank}" if rank else str(worker_id)
        found["overlap_tokens"] = min(facts.prompt.isl, cached)
    found["cached_tokens"] = None if first_at is None else last.cached_tokens
    found |= {"ttft_ms": milliseconds(ttft), "itl_ms": milliseconds(itl)}
    found["e2e_ms"] = milliseconds(said.ended - arrived)
    found["queue_ms"] = milliseconds(request.queue_s)
    found["engine_ttft_ms"] = milliseconds(engine_ttft)
    own_s, soonest_s = (attempt and attempt.foreseen_ttft_s) or (None, None)
    found["foreseen_ttft_ms"], found["soonest_ttft_ms"] = map(milliseconds, (own_s, soonest_s))
    for name in ("ttft", "itl"):
        objective = getattr(placement.objectives, f"{name}_ms")
        found[f"{name}_objective_ms"] = milliseconds(objective and objective / 1e3)
    found["attempts"] = len(request.failures) + 1 if request.failures.failed else None
    return {name: value for name, value in found.items() if value is not None}


@st.composite
def requests(draw: st.DrawFn) -> EndedRequest:
    last = pb.GenerateResponse()
    last.complete.completion_tokens, last.complete.cached_tokens = draw(counts), draw(counts)
    more: dict[str, Any] = {
        "arrived": draw(seconds),
        "ended": draw(seconds),
        "first_at": draw(st.none() | seconds),
        "last_at": draw(seconds),
        "streaming": draw(st.booleans()),
        "messages": draw(few),
        "last_message": draw(st.sampled_from([b"", last.SerializeToString()])),
        "decision": draw(st.none() | decisions),
        "session": draw(st.none() | st.text(min_size=1)),
        "tenant": draw(st.text()),
        "objectives": Objectives(draw(limits), draw(limits)),
        "queue_s": draw(seconds),
        "foreseen_ttft_s": draw(foreseen),
        "attempts": draw(st.integers(1, 9)),
        "status": draw(plain),
    }
    return ended(draw(st.integers(1, 200)), **more)


@given(requests())
def test_a_line_says_what_is_known_and_nothing_else(said: EndedRequest) -> None:
    line = SALT.line(*said, 4, 1)
    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    found = json.loads(line)
    assert list(found)[3] == "hash_ids" and len(found.pop("hash_ids")) == -(
        -said.request.facts.prompt.isl // 64
    )
    assert list(found) == list(expected(said))
    assert found == expected(said)


@pytest.mark.parametrize("text", ['a"b', "a\\b", "a\nb", "\x7f", "ä"])
def test_a_text_that_json_would_escape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not plain"):
        SALT.line(*ended(status=text), 4, 1)


def test_a_time_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="is no time"):
        SALT.line(*ended(arrived=math.inf), 4, 1)


@pytest.mark.parametrize("counted", [MOST_TOKENS, MOST_TOKENS + 1, 2**32 - 1])
def test_an_engine_that_counts_beyond_sense_spoils_no_record(counted: int) -> None:
    last = pb.GenerateResponse()
    last.complete.completion_tokens = counted
    line = SALT.line(*ended(messages=6, last_message=last.SerializeToString()), 4, 1)
    said = msgspec.json.decode(line, type=RecordedRequest)
    assert said.output_length == (counted if counted == MOST_TOKENS else 6)


def test_lengths_that_no_reader_takes_are_not_written() -> None:
    said = ended(messages=MOST_TOKENS + 1, last_message=b"")
    with pytest.raises(ValueError, match="no answer"):
        SALT.line(*said, 4, 1)
