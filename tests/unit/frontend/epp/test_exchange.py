"""Exchange: one request as Envoy shows it, whole, cut, in any order, and refused."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.epp.messages import (
    HEAD,
    Answered,
    body,
    request_headers,
    response_headers,
    trailers,
)

from dynamo_router.base.errors import StatusCode
from dynamo_router.frontend.epp.exchange import (
    DESTINATION,
    AnswerBegan,
    AnswerPart,
    Exchange,
    ExchangeError,
    RequestEnded,
)
from dynamo_router.frontend.epp.proto import processing_pb2 as pb

ENDPOINTS = "10.0.0.1:8000,10.0.0.2:8000"
BUFFERED = (pb.BUFFERED, pb.BUFFERED)


def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=5)))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@st.composite
def direction(draw: st.DrawFn, kind: str) -> tuple[bytes, list[bytes]]:
    """(bytes, messages) of a body, ended as Envoy may: by its last part, by an empty one, or by
    trailers."""
    data = draw(st.binary(max_size=200_000 if draw(st.booleans()) else 50))
    parts = cut(draw, data)
    ending = draw(st.sampled_from(("last", "empty", "trailers")))
    messages = [body(kind, part) for part in parts]
    if ending == "last":
        messages[-1] = body(kind, parts[-1], ends=True)
    elif ending == "empty":
        messages.append(body(kind, b"", ends=True))
    else:
        messages.append(trailers(kind.replace("body", "trailers")))
    return data, messages


@given(direction("request_body"), direction("response_body"), st.data())
def test_bodies_pass_however_they_are_cut(
    request: tuple[bytes, list[bytes]], answer: tuple[bytes, list[bytes]], data: st.DataObject
) -> None:
    exchange, answered = Exchange(), Answered()
    ended = None
    for message in (request_headers(), *request[1]):
        assert ended is None
        step = exchange.receive(message)
        assert not step.answers  # nothing before it is known where it goes
        if isinstance(step.event, RequestEnded):
            ended = step.event
    assert ended is not None and ended.body == request[0] and ended.head.path == HEAD[":path"]
    routed = exchange.route(ENDPOINTS, headers={"x-a": "b"}, remove=["x-c"])
    parts, over = b"", False
    for message in (response_headers(served="10.0.0.2:8000"), *answer[1]):
        while data.draw(st.booleans()) and (sent := next(routed, None)) is not None:
            answered.take(sent)  # while the answer has begun
        step = exchange.receive(message)
        assert len(step.answers) == 1  # at once
        answered.take(step.answers[0])
        assert not over
        over = step.ended
        if isinstance(step.event, AnswerBegan):
            assert step.event == AnswerBegan(200, {":status": "200"}, "10.0.0.2:8000")
        elif isinstance(step.event, AnswerPart):
            parts += step.event.data
    for sent in routed:
        answered.take(sent)
    assert over and parts == answer[0]
    assert answered.bodies == {"request": request[0], "response": answer[0]}
    assert answered.ended == {"request": True, "response": True}
    assert answered.set_headers == {DESTINATION: ENDPOINTS, "x-a": "b"}
    assert answered.removed == ["x-c", "content-length"]
    assert answered.metadata == {DESTINATION: ENDPOINTS}


KINDS = ("request_headers", "request_body", "request_trailers") + (
    "response_headers",
    "response_body",
    "response_trailers",
)


@st.composite
def any_message(draw: st.DrawFn) -> bytes:
    kind, ends = draw(st.sampled_from(KINDS)), draw(st.booleans())
    if kind.endswith("body"):
        return body(kind, draw(st.binary(max_size=5)), ends=ends)
    if kind.endswith("trailers"):
        return trailers(kind)
    return request_headers(ends=ends) if kind.startswith("request") else response_headers(ends=ends)


@given(st.lists(any_message(), max_size=12), st.booleans(), st.booleans())
def test_messages_in_any_order_are_refused_or_answered_in_order(
    messages: list[bytes], buffered: bool, refuses: bool
) -> None:
    exchange, answered = Exchange(), Answered()
    modes = BUFFERED if buffered else (pb.FULL_DUPLEX_STREAMED, pb.FULL_DUPLEX_STREAMED)
    requests = 0
    try:
        for message in (request_headers(modes=modes), *messages):
            step = exchange.receive(message)
            for each in step.answers:
                answered.take(each)
            if isinstance(step.event, RequestEnded):
                requests += 1
                if refuses and exchange.may_refuse:
                    answered.take(exchange.refuse(503, b"{}", {}))
                else:
                    for each in exchange.route(ENDPOINTS, headers={}, remove=()):
                        answered.take(each)
    except ExchangeError as error:
        assert error.code is StatusCode.INVALID_ARGUMENT
    assert requests <= 1


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_ignored(data: bytes) -> None:
    try:
        Exchange().receive(data)
    except ExchangeError:
        pass


def replies(exchange: Exchange, message: bytes) -> Iterator[str]:
    for each in exchange.receive(message).answers:
        yield str(pb.ProcessingResponse.FromString(each).WhichOneof("response"))


@pytest.mark.parametrize("rewritten", [None, b"other"])
def test_buffered_bodies_are_one_message_each_way(rewritten: bytes | None) -> None:
    exchange = Exchange()
    assert [*replies(exchange, request_headers(modes=BUFFERED))] == ["request_headers"]
    event = exchange.receive(body("request_body", b"whole")).event
    assert isinstance(event, RequestEnded) and event.body == b"whole"
    routed = Answered(exchange.route(ENDPOINTS, headers={}, remove=(), body=rewritten))
    assert routed.kinds["request"] == ["body"] and routed.rewritten == rewritten
    length = None if rewritten is None else "5"
    assert routed.set_headers.get("content-length") == length
    assert routed.set_headers[DESTINATION] == routed.metadata[DESTINATION] == ENDPOINTS
    assert [*replies(exchange, trailers("request_trailers"))] == ["request_trailers"]
    assert [*replies(exchange, response_headers())] == ["response_headers"]
    step = exchange.receive(body("response_body", b"answer"))
    assert step.ended and step.event == AnswerPart(b"answer")
    assert Answered(step.answers).rewritten is None
    assert [*replies(exchange, trailers("response_trailers"))] == ["response_trailers"]


def test_a_request_without_a_body_is_routed_by_its_head_alone() -> None:
    exchange = Exchange()
    event = exchange.receive(request_headers(ends=True)).event
    assert isinstance(event, RequestEnded) and event.body == b""
    routed = Answered(exchange.route("10.0.0.1:1", headers={}, remove=()))
    assert routed.kinds["request"] == ["headers"] and "content-length" not in routed.removed
    step = exchange.receive(response_headers(ends=True))
    assert step.ended


def test_a_refusal_is_the_last_word() -> None:
    exchange = Exchange()
    exchange.receive(request_headers(ends=True))
    assert exchange.may_refuse
    refused = Answered([exchange.refuse(429, b"busy", {"retry-after": "1"}, "shed")])
    assert refused.immediate.status.code == 429 and refused.immediate.body == b"busy"
    (header,) = refused.immediate.headers.set_headers
    assert (header.header.key, header.header.raw_value) == ("retry-after", b"1")
    assert refused.immediate.details == "shed"
    assert not exchange.may_refuse
    assert exchange.receive(response_headers()) == ((), None, False)


def test_after_the_head_of_an_answer_nothing_can_be_refused() -> None:
    exchange = Exchange()
    exchange.receive(request_headers())
    exchange.receive(response_headers(504))
    assert not exchange.may_refuse


@pytest.mark.parametrize(
    "subset, found",
    [
        (None, None),
        ("", ()),
        ([], ()),
        ("10.0.0.1:80, 10.0.0.2", ("10.0.0.1:80", "10.0.0.2")),
        (["10.0.0.1:80", "[::1]:80"], ("10.0.0.1:80", "[::1]:80")),
    ],
)
def test_the_subset_is_a_list_or_a_text(subset: object, found: object) -> None:
    event = Exchange().receive(request_headers(ends=True, subset=subset)).event
    assert isinstance(event, RequestEnded) and event.head.subset == found


@pytest.mark.parametrize(
    "first, text",
    [
        (
            request_headers(modes=(pb.STREAMED, pb.BUFFERED)),
            "request_body_mode STREAMED: only FULL_DUPLEX_STREAMED and BUFFERED are served",
        ),
        (
            request_headers(modes=(pb.BUFFERED, pb.NONE)),
            "response_body_mode NONE: only FULL_DUPLEX_STREAMED and BUFFERED are served",
        ),
        (
            request_headers(modes=(17, pb.BUFFERED)),
            "request_body_mode 17: only FULL_DUPLEX_STREAMED and BUFFERED are served",
        ),
        (
            request_headers(observed=True),
            "observability_mode: Envoy would not wait for the picker",
        ),
    ],
)
def test_modes_that_cannot_be_served_are_refused(first: bytes, text: str) -> None:
    with pytest.raises(ExchangeError) as refused:
        Exchange().receive(first)
    assert (refused.value.code, str(refused.value)) == (StatusCode.FAILED_PRECONDITION, text)


def test_an_envoy_that_tells_no_modes_is_taken_for_full_duplex() -> None:
    exchange = Exchange()
    assert not exchange.receive(request_headers(modes=None)).answers
    assert exchange.receive(body("request_body", b"", ends=True)).event is not None


def test_of_a_header_that_comes_twice_the_last_one_counts() -> None:
    message = pb.ProcessingRequest()
    for key, value in (("X-A", "1"), ("x-a", "2")):
        message.request_headers.headers.headers.add(key=key, value=value)
    message.request_headers.end_of_stream = True
    event = Exchange().receive(message.SerializeToString()).event
    assert isinstance(event, RequestEnded) and event.head.headers == {"x-a": "2"}
