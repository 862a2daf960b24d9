"""Traces of sessions: what a line may say, and what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE
from dynamo_router.bench.traces.trace import TraceRequest, read_trace
from dynamo_router.bench.traces.trace_lines import TraceError
from dynamo_router.bench.traces.turn_trace import Turn, read_turns


def line(**more: Any) -> dict[str, Any]:
    return {"input_length": 600, "output_length": 5, "hash_ids": [1, 2], **more}


def write(tmp_path: Path, *lines: dict[str, Any]) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(each) + "\n\n" for each in lines))
    return str(path)


def test_a_trace_without_sessions_reads_as_it_always_did() -> None:
    turns = read_turns(SAMPLE_TRACE, limit=50)
    assert turns == [Turn(request) for request in read_trace(SAMPLE_TRACE, limit=50)]


def test_turns_wait_for_the_turn_before_them_in_their_session(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        line(timestamp=10, session_id="a"),
        line(timestamp=20, session_id=7),
        line(delay=30, session_id="a"),
        line(timestamp=25),
        line(delay=0.5, session_id="a", timestamp=3),
        line(delay=1, session_id=7),
    )
    made = TraceRequest(10, 600, 5, (1, 2))
    assert read_turns(path) == [
        Turn(made),
        Turn(TraceRequest(20, 600, 5, (1, 2))),
        Turn(made, 0, 30.0),
        Turn(TraceRequest(25, 600, 5, (1, 2))),
        Turn(made, 2, 0.5),
        Turn(TraceRequest(20, 600, 5, (1, 2)), 1, 1.0),
    ]
    assert len(read_turns(path, limit=2)) == 2


@pytest.mark.parametrize(
    "bad, reason",
    [
        (line(), "needs a timestamp"),
        (line(delay=3), "needs a timestamp"),
        (line(delay=3, session_id="new"), "needs a timestamp"),
        (line(session_id="a"), "needs a timestamp"),
        (line(delay=-1, session_id="a"), "delay"),
        (line(delay="1", session_id="a"), "delay"),
        (line(delay=1, session_id=[]), "session_id"),
        (line(timestamp=5), "before the previous one"),
        (line(delay=1, session_id="a", hash_ids=[1]), "hash_ids"),
        (line(delay=1, session_id="a", hash_ids=[2, 1]), "two parents"),
        (line(delay=1, session_id="a", input_length=-1), "input_length"),
    ],
)
def test_a_line_that_cannot_be_says_so(tmp_path: Path, bad: dict[str, Any], reason: str) -> None:
    path = write(tmp_path, line(timestamp=10, session_id="a"), bad)
    with pytest.raises(TraceError, match=reason) as caught:
        read_turns(path)
    assert caught.value.line == 3


def test_a_file_that_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_turns(tmp_path / "none")
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(TraceError, match="holds no request"):
        read_turns(tmp_path / "empty")
    (tmp_path / "text").write_text("not json\n")
    with pytest.raises(TraceError, match="text:1"):
        read_turns(tmp_path / "text")
