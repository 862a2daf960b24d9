"""What is added to the logits of tokens: a GenerateRequest has a number for each of a vocabulary.

Few of them are not 0, so engines of other dialects get those by token id. A vocabulary's numbers as
objects would take milliseconds: they are written and read as bytes.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from ..trtllm_proto import length_delimited, pb

_FIELD = pb.GenerateRequest.DESCRIPTOR.fields_by_name["embedding_bias"].number
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def encode_bias(bias: Mapping[int, float], vocab_size: int) -> bytes:
    """The field of a serialized GenerateRequest. All ids are below `vocab_size`."""
    dense = np.zeros(vocab_size, "<f4")
    dense[list(bias)] = list(bias.values())
    return length_delimited(_FIELD, dense.tobytes())


def bias_of(request: bytes) -> dict[int, float]:
    """By token id, those that are not 0. `request` is a serialized GenerateRequest."""
    dense = np.frombuffer(b"".join(_floats(request)), "<f4")
    (ids,) = np.nonzero(dense)
    return dict(zip(ids.tolist(), dense[ids].tolist(), strict=True))


def _floats(request: bytes) -> Iterator[bytes]:
    """The bytes of the field, which may come in parts."""
    at = 0
    while at < len(request):
        tag, at = _varint(request, at)
        kind, number = tag & 7, tag >> 3
        if kind == _VARINT:
            _, at = _varint(request, at)
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, 0)
        if kind == _DELIMITED:
            size, at = _varint(request, at)
        if number == _FIELD:
            yield request[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number, where it ends)"""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
