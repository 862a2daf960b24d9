from collections.abc import Callable
from typing import final

from ..transport.http1 import Client
from .answer_form import AnswerForm
from .engine_requests import Choice
from .processor import ByteText
from .sse_writer import PlainEvents, SseWriter

@final
class PlainStream:
    shown: bool
    finished: bool
    def __init__(self, slow: Callable[[bytes], bool]) -> None: ...
    def begin(
        self,
        text: ByteText,
        choice: Choice,
        client: Client,
        writer: SseWriter,
        form: AnswerForm,
    ) -> None: ...
    def begin_with(
        self,
        text: ByteText,
        choice: Choice,
        client: Client,
        writer: SseWriter,
        events: PlainEvents,
    ) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...
    def __call__(self, message: bytes) -> bool: ...
