"""One HTTP request as Envoy's external processing shows it: a state machine, without I/O.

Messages of Envoy go in, events for the picker and the messages to answer with come out. In full
duplex the picker owns the bodies: what it does not send back is lost. In BUFFERED mode each body is
one message, and Envoy waits for the answer to the one before.

Invariants: answers of one direction come in Envoy's order (headers, body, trailers); nothing
follows an immediate response; a body that is not rewritten goes back byte by byte.

Source: Envoy, api/envoy/service/ext_proc/v3/external_processor.proto; the order of answers was
measured with Envoy 1.40.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from ...base.errors import UNREADABLE_MESSAGE, StatusCode
from .proto import processing_pb2 as pb

CHUNK_BYTES = 62_000
"""Of a body that is sent back: Envoy's own messages stay below 64 KiB."""
DESTINATION = "x-gateway-destination-endpoint"
"""The header, and the key of dynamic metadata, by which Envoy is given endpoints."""
SERVED = "x-gateway-destination-endpoint-served"
SUBSET = "x-gateway-destination-endpoint-subset"
NAMESPACE, SUBSET_NAMESPACE = "envoy.lb", "envoy.lb.subset_hint"
MODES = (pb.FULL_DUPLEX_STREAMED, pb.BUFFERED)


class ExchangeError(Exception):
    """Envoy is configured, or behaves, as the picker cannot serve it: the call ends with `code`."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class Head(NamedTuple):
    """The head of a request. Header names are in lower case; of one that comes twice the last."""

    headers: Mapping[str, str]
    subset: tuple[str, ...] | None
    """endpoints that it may go to, as Envoy's metadata name them; None: all"""

    @property
    def method(self) -> str:
        return self.headers.get(":method", "")

    @property
    def path(self) -> str:
        """Without the query."""
        return self.headers.get(":path", "").partition("?")[0]


class RequestEnded(NamedTuple):
    """A request came whole."""

    head: Head
    body: bytes


class AnswerBegan(NamedTuple):
    """The head of its answer came."""

    status: int
    headers: Mapping[str, str]
    served: str
    """the endpoint that answers, where Envoy says so; else empty"""


class AnswerPart(NamedTuple):
    """Bytes of its answer."""

    data: bytes


Event = RequestEnded | AnswerBegan | AnswerPart


class Step(NamedTuple):
    """What a message comes to: answers to send at once, an event, whether the answer has ended."""

    answers: Sequence[bytes] = ()
    event: Event | None = None
    ended: bool = False


class _Side(enum.IntEnum):
    """How far one direction has come."""

    NOTHING = 0
    HEAD = 1
    ENDED = 2


class Exchange:
    """Feed it each message of a call in order. Once it gave RequestEnded, answer by `route`, or at
    any time before the answer's head by `refuse`."""

    def __init__(self) -> None:
        self._duplex_request = self._duplex_answer = True
        self._first = True
        self._request = self._answer = _Side.NOTHING
        self.head = Head({}, None)
        """of the request, once that came"""
        self._body: bytes | bytearray = bytearray()
        self._has_body = self._trailers = False
        self.refused = False
        """it was refused: Envoy goes on without the picker"""

    @property
    def body_bytes(self) -> int:
        """Of the request, that wait to be sent back."""
        return len(self._body)

    @property
    def may_refuse(self) -> bool:
        """Whether a refusal can still reach the client: no head of an answer has passed."""
        return self._answer is _Side.NOTHING and not self.refused

    def receive(self, data: bytes) -> Step:
        """Take a message. ExchangeError for one that is none, or that should not come now."""
        try:
            message = pb.ProcessingRequest.FromString(data)
        except DecodeError:
            raise ExchangeError(StatusCode.INVALID_ARGUMENT, UNREADABLE_MESSAGE) from None
        if self._first:
            self._first = False
            self._configure(message)
        kind = message.WhichOneof("request")
        if self.refused or kind is None:
            return Step()
        step: Step = getattr(self, f"_on_{kind}")(message)
        return step

    # What is sent

    def route(
        self,
        endpoints: str,
        *,
        headers: Mapping[str, str],
        remove: Sequence[str],
        body: bytes | None = None,
    ) -> Iterator[bytes]:
        """The messages that send the request to `endpoints`, in order of preference, with these
        headers set and removed, and with another body if one is given."""
        assert self._request is _Side.ENDED
        found, self._body = self._body, b""
        whole = bytes(found) if body is None else body
        common = pb.CommonResponse(clear_route_cache=True)
        mutation = common.header_mutation
        for name, value in {DESTINATION: endpoints, **headers}.items():
            _set_header(mutation, name, value)
        mutation.remove_headers.extend(name for name in remove if name not in headers)
        if self._duplex_request or not self._has_body:
            if self._has_body:
                mutation.remove_headers.append("content-length")
            answer = pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common))
        else:
            if body is not None:
                common.body_mutation.body = body
                _set_header(mutation, "content-length", str(len(body)))
            answer = pb.ProcessingResponse(request_body=pb.BodyResponse(response=common))
        answer.dynamic_metadata.update({NAMESPACE: {DESTINATION: endpoints}})
        yield answer.SerializeToString()
        if self._duplex_request and self._has_body:
            yield from _streamed(whole, ends=not self._trailers)
            if self._trailers:
                yield _REQUEST_TRAILERS

    def refuse(
        self, status: int, body: bytes, headers: Mapping[str, str], details: str = ""
    ) -> bytes:
        """The message that ends the request with this answer, and nothing after it."""
        self.refused = True
        self._body = b""
        answer = pb.ImmediateResponse(status=pb.HttpStatus(code=status), body=body, details=details)
        for name, value in headers.items():
            _set_header(answer.headers, name, value)
        message: bytes = pb.ProcessingResponse(immediate_response=answer).SerializeToString()
        return message

    # What comes

    def _configure(self, message: Any) -> None:
        """Read the modes. Envoy before 1.35 sends none and is taken for full duplex."""
        if message.observability_mode:
            text = "observability_mode: Envoy would not wait for the picker"
            raise ExchangeError(StatusCode.FAILED_PRECONDITION, text)
        if not message.HasField("protocol_config"):
            return
        config = message.protocol_config
        for field in ("request_body_mode", "response_body_mode"):
            mode = getattr(config, field)
            if mode not in MODES:
                known = pb.BodySendMode.DESCRIPTOR.values_by_number
                name = known[mode].name if mode in known else str(mode)
                text = f"{field} {name}: only FULL_DUPLEX_STREAMED and BUFFERED are served"
                raise ExchangeError(StatusCode.FAILED_PRECONDITION, text)
        self._duplex_request = config.request_body_mode == pb.FULL_DUPLEX_STREAMED
        self._duplex_answer = config.response_body_mode == pb.FULL_DUPLEX_STREAMED

    def _on_request_headers(self, message: Any) -> Step:
        _expect(self._request is _Side.NOTHING, "request_headers came twice")
        found = message.request_headers
        self.head = Head(_headers_of(found.headers), _subset_of(message))
        self._request = _Side.HEAD
        if found.end_of_stream:
            return self._ended()
        self._has_body = True
        return Step() if self._duplex_request else Step((_REQUEST_HEADERS,))

    def _on_request_body(self, message: Any) -> Step:
        _expect(self._request is _Side.HEAD, "request_body came out of turn")
        part = message.request_body
        self._body += part.body
        if part.end_of_stream or not self._duplex_request:
            return self._ended()
        return Step()

    def _on_request_trailers(self, message: Any) -> Step:
        if not self._duplex_request:  # of a body that is with Envoy already
            _expect(self._request is _Side.ENDED, "request_trailers came out of turn")
            return Step((_REQUEST_TRAILERS,))
        _expect(self._request is _Side.HEAD, "request_trailers came out of turn")
        self._trailers = True
        return self._ended()

    def _ended(self) -> Step:
        self._request, self._body = _Side.ENDED, bytes(self._body)
        return Step(event=RequestEnded(self.head, self._body))

    def _on_response_headers(self, message: Any) -> Step:
        _expect(self._answer is _Side.NOTHING, "response_headers came twice")
        found = message.response_headers
        headers = _headers_of(found.headers)
        status = headers.get(":status", "")
        began = AnswerBegan(
            int(status) if status.isdecimal() and len(status) == 3 else 0,
            headers,
            _text_in(message, NAMESPACE, SERVED),
        )
        self._answer = _Side.ENDED if found.end_of_stream else _Side.HEAD
        return Step((_RESPONSE_HEADERS,), began, found.end_of_stream)

    def _on_response_body(self, message: Any) -> Step:
        _expect(self._answer is _Side.HEAD, "response_body came out of turn")
        part = message.response_body
        if not self._duplex_answer:
            self._answer = _Side.ENDED
            return Step((_RESPONSE_BODY,), AnswerPart(part.body), True)
        echo = pb.ProcessingResponse()
        streamed = echo.response_body.response.body_mutation.streamed_response
        streamed.body = part.body
        for field in ("end_of_stream", "end_of_stream_without_message", "grpc_message_compressed"):
            if getattr(part, field):
                setattr(streamed, field, True)
        if part.end_of_stream:
            self._answer = _Side.ENDED
        event = AnswerPart(part.body) if part.body else None
        return Step((echo.SerializeToString(),), event, part.end_of_stream)

    def _on_response_trailers(self, message: Any) -> Step:
        before = self._answer
        _expect(before is not _Side.NOTHING, "response_trailers came out of turn")
        self._answer = _Side.ENDED
        return Step((_RESPONSE_TRAILERS,), None, before is not _Side.ENDED)


def _expect(holds: bool, text: str) -> None:
    if not holds:
        raise ExchangeError(StatusCode.INVALID_ARGUMENT, text)


def _headers_of(found: Any) -> dict[str, str]:
    return {
        each.key.lower(): each.raw_value.decode("latin-1") if each.raw_value else each.value
        for each in found.headers
    }


def _set_header(mutation: Any, name: str, value: str) -> None:
    mutation.set_headers.add(
        header=pb.HeaderValue(key=name, raw_value=value.encode()),
        append_action=pb.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _field_of(message: Any, namespace: str, key: str) -> Any:
    """A value of Envoy's metadata; None if it is not there."""
    metadata = message.metadata_context.filter_metadata
    return metadata[namespace].fields.get(key) if namespace in metadata else None


def _text_in(message: Any, namespace: str, key: str) -> str:
    found = _field_of(message, namespace, key)
    return "" if found is None else str(found.string_value)


def _subset_of(message: Any) -> tuple[str, ...] | None:
    """A list of texts, or one text with commas."""
    found = _field_of(message, SUBSET_NAMESPACE, SUBSET)
    if found is None:
        return None
    if found.WhichOneof("kind") == "list_value":
        names = [each.string_value for each in found.list_value.values]
    else:
        names = found.string_value.split(",")
    return tuple(name.strip() for name in names if name.strip())


def _streamed(body: bytes, *, ends: bool) -> Iterator[bytes]:
    """A body in chunks; the last one ends it, if nothing follows."""
    for begin in range(0, max(1, len(body)), CHUNK_BYTES):
        message = pb.ProcessingResponse()
        part = message.request_body.response.body_mutation.streamed_response
        part.body = body[begin : begin + CHUNK_BYTES]
        part.end_of_stream = ends and begin + CHUNK_BYTES >= len(body)
        yield message.SerializeToString()


def _nothing_changed(kind: str) -> bytes:
    """The answer that leaves a part as it is."""
    message = pb.ProcessingResponse()
    part = getattr(message, kind)
    (part if kind.endswith("trailers") else part.response).SetInParent()
    part.SetInParent()
    data: bytes = message.SerializeToString()
    return data


_REQUEST_HEADERS = _nothing_changed("request_headers")
_REQUEST_TRAILERS = _nothing_changed("request_trailers")
_RESPONSE_HEADERS = _nothing_changed("response_headers")
_RESPONSE_BODY = _nothing_changed("response_body")
_RESPONSE_TRAILERS = _nothing_changed("response_trailers")
