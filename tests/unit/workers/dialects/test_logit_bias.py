"""Biases of tokens in a serialized GenerateRequest."""

from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.workers.dialects import bias_of, encode_bias
from dynamo_router.workers.trtllm_proto import pb

BIASES = st.dictionaries(
    st.integers(0, 99), st.floats(-100, 100, width=32).filter(bool), max_size=20
)
REQUESTS = st.builds(
    pb.GenerateRequest,
    request_id=st.text(max_size=300),
    tokenized=st.builds(
        pb.TokenizedInput, input_token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=50)
    ),
    max_tokens=st.integers(0, 2**32 - 1),
    arrival_time=st.floats(allow_nan=False),
    streaming=st.booleans(),
    stop_token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=50),
)


@given(REQUESTS, BIASES)
def test_what_is_written_is_read_behind_any_fields(
    request: pb.GenerateRequest, bias: dict[int, float]
) -> None:
    body = request.SerializeToString() + encode_bias(bias, 100)
    assert bias_of(body) == bias
    dense = pb.GenerateRequest.FromString(body).embedding_bias
    assert len(dense) == 100
    assert {at: value for at, value in enumerate(dense) if value} == bias
    assert bias_of(request.SerializeToString()) == {}


def test_a_list_may_come_in_parts_and_number_by_number() -> None:
    parts = [pb.GenerateRequest(embedding_bias=part).SerializeToString() for part in ([0, 1], [2])]
    single = bytes([12 << 3 | 5]) + b"\x00\x00\x40\x40"
    body = parts[0] + single + parts[1]
    assert list(pb.GenerateRequest.FromString(body).embedding_bias) == [0, 1, 3, 2]
    assert bias_of(body) == {1: 1.0, 2: 3.0, 3: 2.0}
