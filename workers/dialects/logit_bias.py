"""What is added to the logits of tokens: a GenerateRequest has a number for each of a vocabulary.

Few of them are not 0, so engines of other dialects get those by token id. A vocabulary's numbers as
objects would take milliseconds: they are written and read as bytes.
"""

from collections.abc import Mapping

import numpy as np

from ..trtllm_proto import length_delimited, parts_of, pb

_FIELD = pb.GenerateRequest.DESCRIPTOR.fields_by_name["embedding_bias"].number


def encode_bias(bias: Mapping[int, float], vocab_size: int) -> bytes:
    """The field of a serialized GenerateRequest. All ids are below `vocab_size`."""
    dense = np.zeros(vocab_size, "<f4")
    dense[list(bias)] = list(bias.values())
    return length_delimited(_FIELD, dense.tobytes())


def bias_of(request: bytes) -> dict[int, float]:
    """By token id, those that are not 0. `request` is a serialized GenerateRequest."""
    dense = np.frombuffer(b"".join(parts_of(request, _FIELD, floats=True)), "<f4")
    (ids,) = np.nonzero(dense)
    return dict(zip(ids.tolist(), dense[ids].tolist(), strict=True))
