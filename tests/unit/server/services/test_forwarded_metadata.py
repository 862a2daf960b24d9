"""What of a request's metadata goes on to its worker."""

import pytest

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.server.services import read_metadata

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def forwarded(*metadata: tuple[str, str | bytes]) -> list[tuple[str, str | bytes]]:
    return list(read_metadata(metadata)[0])


def test_trace_context_goes_on_and_nothing_else_does() -> None:
    said = (("traceparent", TRACE), ("tracestate", "a=b"), ("baggage", "c=d e"))
    assert forwarded(*said, ("x-secret", "1"), ("authorization", "Bearer x")) == list(said)


@pytest.mark.parametrize("value", ["\xe9", "a\tb", "\x7f", "a\nb", b"bytes"])
def test_what_cannot_be_sent_on_is_left_out(value: str | bytes) -> None:
    """A call to the worker would fail of it, and the worker be blamed."""
    assert forwarded(("tracestate", value), ("traceparent", TRACE)) == [("traceparent", TRACE)]


def test_a_number_of_a_worker_is_read() -> None:
    _, pinned, urgency = read_metadata((("x-dynamo-worker-instance-id", "7"),))
    assert pinned is not None and pinned.worker_id == 7
    assert urgency.priority == 0


def test_an_urgency_is_read() -> None:
    metadata = (("x-dynamo-priority", "3"), ("x-dynamo-priority-jump", "1.5"))
    _, pinned, urgency = read_metadata(metadata)
    assert pinned is None
    assert (urgency.priority, urgency.jump) == (3, 1.5)


def test_a_rank_is_one_of_a_worker() -> None:
    rank, worker = ("x-dynamo-dp-rank", "1"), ("x-dynamo-worker-instance-id", "7")
    assert read_metadata((rank, worker))[1] == (7, 1)
    with pytest.raises(InvalidRequestError, match="x-dynamo-dp-rank without"):
        read_metadata((rank,))


@pytest.mark.parametrize("rank", ["one", "-1", "", str(1 << 32)])
def test_what_is_no_rank_is_named(rank: str) -> None:
    metadata = (("x-dynamo-worker-instance-id", "7"), ("x-dynamo-dp-rank", rank))
    with pytest.raises(InvalidRequestError, match=f"names no worker: '7', rank '{rank}'"):
        read_metadata(metadata)
