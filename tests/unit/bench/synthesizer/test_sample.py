"""The shipped sample trace: made by the command beside it, readable, and worth routing by."""

import re
import shlex
from pathlib import Path

import pytest
from support.places import CONVERSATION

from dynamo_router import cli
from dynamo_router.bench.synthesizer.sample import SAMPLE_TRACE, sample_traffic
from dynamo_router.bench.traces.analysis import analyze
from dynamo_router.bench.traces.columns import read_columns
from dynamo_router.bench.traces.trace import read_trace

REQUESTS = sum(1 for _ in read_trace(SAMPLE_TRACE))


def documented_command() -> list[str]:
    """The words of the synthesize command in the sample's README."""
    text = SAMPLE_TRACE.with_name("README.md").read_text()
    found = re.search(r"^ {4}dynamo-router (synthesize .*(?:\n {8}.*)*)", text, re.MULTILINE)
    assert found is not None
    return shlex.split(found[1].replace("\\\n", " "))


@pytest.mark.skipif(not CONVERSATION.exists(), reason="the conversation trace is not here")
def test_the_documented_command_makes_the_shipped_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "sample_trace.jsonl"
    words = [
        {CONVERSATION.name: str(CONVERSATION), SAMPLE_TRACE.name: str(made)}.get(word, word)
        for word in documented_command()
    ]
    assert str(made) in words and str(CONVERSATION) in words
    monkeypatch.setattr("sys.argv", ["dynamo-router", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert made.read_bytes() == SAMPLE_TRACE.read_bytes()


def test_it_says_what_it_was_learned_from() -> None:
    told = SAMPLE_TRACE.with_name("README.md").read_text()
    assert "Mooncake" in told and "Apache License 2.0" in told


def test_it_is_small_and_has_something_to_reuse() -> None:
    assert SAMPLE_TRACE.stat().st_size < 200_000
    found, _ = analyze(read_columns(SAMPLE_TRACE))
    assert 200 <= found.requests <= 1000
    assert 12 < found.span_s < 30  # or the demo takes too long
    # A cache without end would save most of it, one of the demo's engines alone does not.
    assert 0.5 < found.hit_rate_infinite < 0.85
    sessions = found.sessions
    assert sessions.requests.max is not None and sessions.requests.max > 4
    assert found.output_length.min == 1


def test_there_is_more_where_it_came_from() -> None:
    more = sample_traffic(REQUESTS + 100)
    assert len(more) == REQUESTS + 100
    assert sample_traffic(50) == more[:50]
    assert {request.hash_ids[0] for request in more} == {0}  # one system prompt
