"""A worker's answer, from a handler to whatever carries it: parts, errors, the end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from structlog import get_logger

from ...base.errors import InvalidRequestError
from ...base.urls import redact_text
from .messages import SENTINEL, RequestMessage, data_frame, final_frame, prologue

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Whose request it is. A handler that stops it looks at `cancelled` between its steps."""

    id: str
    path: str
    metadata: dict[str, str] = field(default_factory=dict)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)


Handler: TypeAlias = Callable[[Any, RequestContext], AsyncIterator[object]]
"""Yields the parts of an answer, each as the caller gets it (see `annotated`)."""


class AnswerSink(Protocol):
    """Where an answer's frames go."""

    def write(self, frame: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait while the caller does not read."""
        ...


async def write_answer(
    handler: Handler, message: RequestMessage, context: RequestContext, sink: AnswerSink
) -> bool:
    """Write prologue, parts and end; whether it came to its end and is wanted.

    Cancelling `context` stops the handler.
    """
    sink.write(prologue())  # at once: a caller waits for a sign only so long
    await sink.drain()
    sending = asyncio.create_task(_pump(handler, message, context, sink))
    over = asyncio.create_task(context.cancelled.wait())
    try:
        await asyncio.wait({sending, over}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        over.cancel()
        sending.cancel()
        await asyncio.wait({sending, over})
    if sending.cancelled() or context.cancelled.is_set():
        return False
    sink.write(final_frame(message.codec))
    sink.write(SENTINEL)
    return True


def annotated(chunk: object) -> dict[str, object]:
    """A part of an answer in the envelope that callers of `generate` expect."""
    return {"data": chunk}


async def _pump(
    handler: Handler, message: RequestMessage, context: RequestContext, sink: AnswerSink
) -> None:
    parts = handler(message.body, context)
    try:
        async for part in parts:
            sink.write(data_frame(part, message.codec))
            await sink.drain()
    except InvalidRequestError as error:
        sink.write(data_frame(_error_chunk(str(error), "InvalidArgument"), message.codec))
    except Exception as error:
        log.exception("a handler failed", path=context.path, request_id=context.id)
        text = f"{type(error).__name__}: {error}"
        sink.write(data_frame(_error_chunk(text, None), message.codec))
    finally:
        await end_parts(parts)


async def end_parts(parts: object) -> None:
    """Of a handler's answer, which need not be a generator: no more of them are wanted."""
    if (close := getattr(parts, "aclose", None)) is not None:
        await close()


def _error_chunk(text: str, error_type: str | None) -> dict[str, object]:
    text = redact_text(text)[:2000]
    chunk: dict[str, object] = {"event": "error", "comment": [text]}
    if error_type is not None:
        public = {"type": "message", "message": text}
        chunk["error"] = {"error_type": error_type, "message": text, "public": public}
    return chunk
