"""How much of each prompt returns, as a trace tells it."""

from dynamo_router.bench.simulation.prepared_trace import returning_tokens
from dynamo_router.bench.traces import TraceRequest


def asked(length: int, *ids: int) -> TraceRequest:
    return TraceRequest(timestamp_ms=0.0, input_length=length, output_length=1, hash_ids=ids)


def test_what_a_later_prompt_begins_with_returns() -> None:
    trace = [asked(30, 1, 2, 3), asked(25, 1, 2, 4), asked(7, 9), asked(11, 1, 5)]
    assert returning_tokens(trace, 10) == [20, 10, 0, 0]
    assert returning_tokens([asked(15, 1, 2), asked(15, 1, 2)], 10) == [15, 0]
