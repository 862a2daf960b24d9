"""Messages of Envoy's, and what its answers come to."""

from collections.abc import Iterable, Mapping
from typing import Any

from dynamo_router.frontend.epp.exchange import NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE
from dynamo_router.frontend.epp.proto import processing_pb2 as pb

HEAD = {":method": "POST", ":path": "/v1/completions", "content-length": "9"}


def request_headers(
    headers: Mapping[str, str] = HEAD,
    *,
    ends: bool = False,
    subset: Any = None,
    modes: tuple[int, int] | None = (pb.FULL_DUPLEX_STREAMED, pb.FULL_DUPLEX_STREAMED),
    observed: bool = False,
) -> bytes:
    message = pb.ProcessingRequest(observability_mode=observed)
    _fill(message.request_headers, headers, ends)
    if modes is not None:
        message.protocol_config.request_body_mode = pb.BodySendMode.ValueType(modes[0])
        message.protocol_config.response_body_mode = pb.BodySendMode.ValueType(modes[1])
    if subset is not None:
        message.metadata_context.filter_metadata[SUBSET_NAMESPACE].update({SUBSET: subset})
    return message.SerializeToString()


def response_headers(
    status: int = 200,
    *,
    served: str = "",
    ends: bool = False,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    message = pb.ProcessingRequest()
    _fill(message.response_headers, {":status": str(status), **(headers or {})}, ends)
    if served:
        message.metadata_context.filter_metadata[NAMESPACE].update({SERVED: served})
    return message.SerializeToString()


def body(kind: str, data: bytes, *, ends: bool = False) -> bytes:
    """A part of request_body or response_body."""
    message = pb.ProcessingRequest()
    getattr(message, kind).CopyFrom(pb.HttpBody(body=data, end_of_stream=ends))
    return message.SerializeToString()


def trailers(kind: str) -> bytes:
    message = pb.ProcessingRequest()
    getattr(message, kind).SetInParent()
    return message.SerializeToString()


def _fill(part: Any, headers: Mapping[str, str], ends: bool) -> None:
    part.end_of_stream = ends
    for name, value in headers.items():
        part.headers.headers.add(key=name, raw_value=value.encode())


class Answered:
    """Answers put together as Envoy does; AssertionError for what it would not take."""

    ORDER = ("headers", "body", "trailers")

    def __init__(self, answers: Iterable[bytes] = ()) -> None:
        self.kinds: dict[str, list[str]] = {"request": [], "response": []}
        self.bodies = {"request": b"", "response": b""}
        self.ended = {"request": False, "response": False}
        self.set_headers: dict[str, str] = {}
        self.removed: list[str] = []
        self.metadata: dict[str, Any] = {}
        self.immediate: Any = None
        self.rewritten: bytes | None = None
        for answer in answers:
            self.take(answer)

    def take(self, answer: bytes) -> None:
        message = pb.ProcessingResponse.FromString(answer)
        assert self.immediate is None, "nothing follows an immediate response"
        kind = message.WhichOneof("response")
        assert kind is not None
        if kind == "immediate_response":
            self.immediate = message.immediate_response
            return
        side, _, part = kind.partition("_")
        kinds = self.kinds[side]
        assert not kinds or self.ORDER.index(part) >= self.ORDER.index(kinds[-1])
        assert part == "body" or part not in kinds
        kinds.append(part)
        if message.HasField("dynamic_metadata"):
            self.metadata = dict(message.dynamic_metadata[NAMESPACE].items())  # type: ignore[union-attr]
        if part == "trailers":
            self.ended[side] = True
            return
        common = getattr(message, kind).response
        for option in common.header_mutation.set_headers:
            assert option.append_action == pb.OVERWRITE_IF_EXISTS_OR_ADD
            self.set_headers[option.header.key] = option.header.raw_value.decode()
        self.removed += common.header_mutation.remove_headers
        mutation = common.body_mutation
        if mutation.WhichOneof("mutation") == "body":
            self.rewritten = mutation.body
        elif mutation.WhichOneof("mutation") == "streamed_response":
            assert not self.ended[side]
            streamed = mutation.streamed_response
            assert len(streamed.body) <= 62_000 or side == "response"
            self.bodies[side] += streamed.body
            self.ended[side] = streamed.end_of_stream
