"""When a refused client is to come again, at each door: foreseen, in whole seconds, bounded."""

import math
from typing import Any, cast

import pytest

from dynamo_router.base.errors import (
    CapacityError,
    InvalidRequestError,
    NoWorkersError,
    StatusCode,
    WorkerError,
)
from dynamo_router.frontend.anthropic.errors import messages_error
from dynamo_router.frontend.openai.errors import ApiError, error_answer
from dynamo_router.server.dispatch.status import retry_after_s, retry_metadata
from dynamo_router.server.services.trtllm_service import MAX_TRAILING_BYTES, abort_with
from dynamo_router.transport.http1 import HttpError
from dynamo_router.transport.http1.errors import plain_error
from dynamo_router.transport.http2.server_call import _fitting
from dynamo_router.workers.dialects.openai_errors import error_of
from dynamo_router.workers.failures import EngineCallError, Origin


def overloaded(seconds: float | None) -> NoWorkersError:
    return NoWorkersError("full", overloaded=True, retry_after_s=seconds)


def engine(code: StatusCode, *trailing: tuple[str, str]) -> EngineCallError:
    return EngineCallError(Origin.ENGINE, code, "no", trailing)


FULL = StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "error, seconds",
    [
        (overloaded(None), 1),
        (overloaded(0.0), 1),
        (overloaded(-5.0), 1),
        (overloaded(1.2), 2),
        (overloaded(7.0), 7),
        (overloaded(4000.0), 60),
        (overloaded(math.inf), 60),
        (overloaded(math.nan), 1),
        (NoWorkersError("none is ready"), 1),
        (CapacityError("too many"), 1),
        (WorkerError("gone"), 1),
        (InvalidRequestError("never"), None),
        (ValueError("ours"), None),
        (engine(FULL), 1),
        (engine(FULL, ("retry-after", "7")), 7),
        (engine(FULL, ("retry-after", "99999999")), 60),
        (engine(FULL, ("retry-after", "-3")), 1),
        (engine(FULL, ("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")), 1),
        (engine(FULL, ("grpc-retry-pushback-ms", "2500")), 3),
        (engine(StatusCode.UNAVAILABLE), 1),
        (engine(StatusCode.INVALID_ARGUMENT), None),
        (error_of(429, b"{}", "3"), 3),
        (error_of(503), 1),
        (error_of(413), None),
        (error_of(400), None),
    ],
)
def test_the_seconds_of_an_error(error: Exception, seconds: int | None) -> None:
    assert retry_after_s(error) == seconds
    found = dict(retry_metadata(error))
    if seconds is None:
        assert not found
    else:
        assert found == {
            "retry-after": str(seconds),
            "grpc-retry-pushback-ms": str(1000 * seconds),
        }


@pytest.mark.parametrize("form", [error_answer, messages_error])
def test_each_door_over_http_says_what_was_foreseen(form: object) -> None:
    answer = form(overloaded(12.3))  # type: ignore[operator]
    assert (answer.status, answer.headers["retry-after"]) == (429, "13")


@pytest.mark.parametrize("status", [429, 503])
def test_nothing_foreseen_is_a_second(status: int) -> None:
    for error in (HttpError(status, "no"), ApiError(status, "no")):
        assert error_answer(error).headers["retry-after"] == "1"
    assert plain_error(HttpError(status, "no")).headers["retry-after"] == "1"
    assert "retry-after" not in error_answer(ApiError(400, "no")).headers


class Context:
    """A call over gRPC that is ended."""

    sent: tuple[tuple[bytes, bytes], ...] = ()

    async def abort(self, code: StatusCode, details: str, trailing: object) -> None:
        self.sent = _fitting(trailing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more, passed",
    [
        (("x-load", "3"), True),
        (("grpc-server-stats-bin", b"x"), False),  # of the protocol: some servers send it
        (("x-load", "\u00e9"), False),
        (("x-load", "x" * MAX_TRAILING_BYTES), False),
    ],
)
async def test_what_else_an_engine_sends_keeps_nothing_from_clients(
    more: tuple[str, str | bytes], passed: bool
) -> None:
    error = EngineCallError(Origin.ENGINE, FULL, "no", (more, ("retry-after", "7")))
    context = Context()
    await abort_with(cast(Any, context), error)
    told = dict(context.sent)
    assert (told.pop(b"retry-after"), told.pop(b"grpc-retry-pushback-ms")) == (b"7", b"7000")
    assert bool(told) == passed
