"""Serialized answers to SelectWorker are what protobuf would write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.router.proto import router_pb2 as pb
from dynamo_router.server.services._selection import write_selection

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


@given(st.tuples(U64, U32, st.text(), U32, U32, U32, st.booleans(), U32, U32))
def test_bytes_are_those_of_protobuf(
    fields: tuple[int, int, str, int, int, int, bool, int, int],
) -> None:
    worker_id, dp_rank, address, overlap, blocks, cached, booked, host, disk = fields
    answer = pb.SelectWorkerResponse(
        worker=pb.Worker(worker_id=worker_id, dp_rank=dp_rank),
        address=address,
        overlap_blocks=overlap,
        request_blocks=blocks,
        cached_tokens=cached,
        booked=booked,
        host_overlap_blocks=host,
        disk_overlap_blocks=disk,
    )
    assert write_selection(*fields) == answer.SerializeToString()


def test_what_is_no_number_of_a_field_is_refused() -> None:
    with pytest.raises(OverflowError):
        write_selection(1 << 64, 0, "", 0, 0, 0, False, 0, 0)
    with pytest.raises(OverflowError):
        write_selection(1, -1, "", 0, 0, 0, False, 0, 0)
    with pytest.raises(UnicodeEncodeError):
        write_selection(1, 0, "\ud800", 0, 0, 0, False, 0, 0)
