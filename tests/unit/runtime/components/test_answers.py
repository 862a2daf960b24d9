"""Parts of answers out of their envelope, with the errors that Dynamo's workers send."""

import json
from typing import Any

import pytest
from support.places import VECTORS

from dynamo_router.runtime.components.answers import NOTHING, data_of
from dynamo_router.runtime.request_planes import Fault, RequestError


@pytest.mark.parametrize(
    ("part", "data"),
    [
        ({"data": {"token_ids": [1]}}, {"token_ids": [1]}),
        ({"data": None, "id": "x"}, None),
        ({"Events": {"events": []}}, {"Events": {"events": []}}),
        ({"data": 1, "more": 2}, {"data": 1, "more": 2}),
        ([1, 2], [1, 2]),
        ("text", "text"),
        ({"comment": ["warming up"], "event": "note"}, NOTHING),
        ({}, NOTHING),
    ],
)
def test_data_comes_out_of_its_envelope(part: Any, data: Any) -> None:
    assert data_of(part) == data


def recorded_error() -> Any:
    cases = json.loads((VECTORS / "request_plane" / "tcp_errors.json").read_text())["cases"]
    frames = cases["error_chunk_no_max_tokens"]["response_connection"]
    return next(f["body"]["data"] for f in frames if f["body"] and "data" in f["body"])


@pytest.mark.parametrize(
    ("part", "fault", "message"),
    [
        (recorded_error(), Fault.INVALID, "max_output_tokens must be specified"),
        (
            {"error": {"error_type": "ResourceExhausted", "message": "full"}},
            Fault.OVERLOADED,
            "full",
        ),
        (
            {"event": "error", "error": {"error_type": {"Backend": "EngineShutdown"}}},
            Fault.UNAVAILABLE,
            "reported a failure",
        ),
        ({"event": "error", "comment": ["out", "of luck"]}, Fault.FAILED, "out, of luck"),
        ({"error": "words"}, Fault.FAILED, "words"),
        ({"error": {"error_type": 7, "message": None}, "comment": 3}, Fault.FAILED, "3"),
        ({"event": "error"}, Fault.FAILED, "reported a failure"),
        ({"error": {"error_type": {}}}, Fault.FAILED, "reported a failure"),
    ],
)
def test_errors_are_told_apart(part: Any, fault: Fault, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        data_of(part)
    assert caught.value.fault is fault
