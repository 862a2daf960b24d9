"""Traces for tests: random ones that obey the tree property, and the plainest special cases."""

from collections.abc import Sequence

from hypothesis import strategies as st

from dynamo_router.bench.traces.trace import TraceRequest

SIZE = 8  # tokens in a block


def request(at_ms: float, ids: Sequence[int], *, partial: int = 0, output: int = 5) -> TraceRequest:
    """A request of these blocks; the last one lacks `partial` tokens."""
    return TraceRequest(at_ms, SIZE * len(ids) - partial, output, tuple(ids))


@st.composite
def traces(draw: st.DrawFn, *, max_size: int = 30) -> list[TraceRequest]:
    """Requests that start anew, repeat, cut or extend an earlier prompt, at ascending times."""
    made: list[TraceRequest] = []
    now, fresh = 0, 0
    for _ in range(draw(st.integers(1, max_size))):
        now += draw(st.sampled_from([0, 0, 1, 7, 500]))
        before: tuple[int, ...] = ()
        if made and draw(st.booleans()):
            before = made[draw(st.integers(0, len(made) - 1))].hash_ids
            before = before[: draw(st.integers(0, len(before)))]
        more = draw(st.integers(0 if before else 1, 4))
        ids = [*before, *range(fresh, fresh + more)]
        fresh += more
        made.append(
            request(
                now,
                ids,
                partial=draw(st.integers(0, SIZE - 1)),
                output=draw(st.integers(0, 9)),
            )
        )
    return made


def chat(sessions: int = 40, turns: int = 4) -> list[TraceRequest]:
    """Sessions under one system prompt, side by side; each turn holds all of the one before."""
    made = []
    for session in range(sessions):
        ids = [0, 1]
        for turn in range(turns):
            start = 10 + (session * turns + turn) * 8
            grown = [*ids, *range(start, start + 2 + session % 3)]
            at = session * 500 + turn * 3000
            made.append(request(at, grown, partial=3, output=10 + turn))
            ids = grown[:-1]
    return sorted(made, key=lambda made_request: made_request.timestamp_ms)


SPECIAL: dict[str, list[TraceRequest]] = {
    "one request": [request(5, [7], partial=3)],
    "all identical": [request(at, [1, 2, 3], partial=2) for at in range(50)],
    "all at once": [request(0, [1, 10 + at]) for at in range(50)],
    "no reuse": [request(at * 10, [3 * at, 3 * at + 1], partial=1) for at in range(50)],
    "one long session": [request(at * 100, range(at + 1), partial=4) for at in range(40)],
}
