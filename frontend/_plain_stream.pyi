from collections.abc import Callable
from typing import final

from ..transport.http1 import Client
from .openai import Usage
from .processor import ByteText

@final
class PlainStream:
    def __init__(self, slow: Callable[[bytes], bool]) -> None: ...
    def begin(
        self,
        text: ByteText,
        usage: Usage,
        client: Client,
        waiting: list[bytes],
        schedule: Callable[[], object],
        before: bytes,
        behind: bytes,
    ) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...
    def __call__(self, message: bytes) -> bool: ...
