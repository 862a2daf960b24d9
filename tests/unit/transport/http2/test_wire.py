"""Time-outs, texts and metadata as gRPC writes them into headers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.transport.http2.wire import (
    decode_message,
    decode_metadata,
    decode_timeout,
    encode_message,
    encode_metadata,
    encode_timeout,
)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1n", 1e-9),
        (b"99999999u", 99.999999),
        (b"20m", 0.02),
        (b"3S", 3.0),
        (b"2M", 120.0),
        (b"1H", 3600.0),
        (b"0S", 0.0),
    ],
)
def test_time_outs_in_all_units(value: bytes, seconds: float) -> None:
    assert decode_timeout(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"S", b"1", b"1s", b"-1S", b"123456789S", b"1.5S", b"1S "])
def test_what_is_no_time_out(value: bytes) -> None:
    assert decode_timeout(value) is None


@given(st.floats(0, 3e11))
def test_a_time_out_is_never_cut_short(seconds: float) -> None:
    coded = encode_timeout(seconds)
    back = decode_timeout(coded)
    assert back is not None and len(coded) <= 9
    assert (
        seconds * (1 - 1e-9)
        <= back
        <= seconds + max(1e-6, seconds * 1e-4, 1e-3) + 3600 * (seconds > 9e7)
    )


def test_a_time_out_that_is_over_or_endless_can_be_written() -> None:
    assert encode_timeout(-5.0) == b"0u"
    assert encode_timeout(1e30) == b"99999999H"


@given(st.text())
def test_texts_come_back_as_they_were(text: str) -> None:
    coded = encode_message(text)
    assert all(0x20 <= byte < 0x7F for byte in coded)
    assert decode_message(coded) == text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    ("coded", "text"), [(b"a%20b", "a b"), (b"50%", "50%"), (b"%zz%C3", "%zz\ufffd"), (b"", "")]
)
def test_texts_that_are_coded_wrong_are_read_as_far_as_can_be(coded: bytes, text: str) -> None:
    assert decode_message(coded) == text


KEYS = st.text("abz09_.-", min_size=1, max_size=8)
PLAIN = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))


@given(
    st.lists(
        st.tuples(KEYS.filter(lambda key: not key.endswith("-bin")), PLAIN)
        | st.tuples(KEYS.map(lambda key: f"{key}-bin"), st.binary())
    )
)
def test_metadata_come_back_as_they_were(metadata: list[tuple[str, str | bytes]]) -> None:
    assert list(decode_metadata(encode_metadata(metadata))) == metadata


@pytest.mark.parametrize(
    ("key", "value"), [("a b", "x"), ("", "x"), ("grpc-status", "0"), ("a", "é"), ("a", "x\ny")]
)
def test_metadata_that_cannot_be_sent(key: str, value: str) -> None:
    with pytest.raises(ValueError):
        encode_metadata([(key, value)])


def test_headers_of_the_protocol_are_no_metadata() -> None:
    headers = [(b":status", b"200"), (b"grpc-status", b"0"), (b"x", b"\xe9"), (b"y-bin", b"?")]
    assert decode_metadata(headers) == (("x", "é"), ("y-bin", b"?"))


def test_an_infinite_time_out_is_the_callers_mistake() -> None:
    with pytest.raises(OverflowError):
        encode_timeout(math.inf)


def test_a_binary_value_has_a_bounded_number_of_parts() -> None:
    assert decode_metadata([(b"a-bin", b"AQ,Ag")]) == (("a-bin", b"\1"), ("a-bin", b"\2"))
    assert decode_metadata([(b"a-bin", b"," * 4000)]) == (("a-bin", b"," * 4000),)
