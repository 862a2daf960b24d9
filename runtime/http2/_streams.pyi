from typing import Any

HEADERS: int
MESSAGE: int
HALF_CLOSED: int
DRAINED: int
END: int
SETTINGS: int
PONG: int
GOAWAY: int
PING: int
VIOLATION: int
REFUSED: int
GAVE_UP: int

SOUND: int
MESSAGE_COMPRESSED: int
MESSAGE_TOO_LONG: int
OUT_OF_MEMORY: int
HEADERS_TOO_LONG: int
MESSAGE_CUT: int

class Stream:
    owner: Any
    tell_drained: bool
    @property
    def id(self) -> int: ...
    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def trailers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def violation(self) -> int: ...
    @property
    def begun(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def dropped(self) -> bool: ...
    @property
    def queued(self) -> int: ...
    @property
    def message_bytes(self) -> int: ...

class Streams:
    most_new: int
    most_frames: int
    @property
    def held(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def unfinished_headers(self) -> int: ...
    @property
    def complaint(self) -> str: ...
    def __len__(self) -> int: ...
    def shed(self) -> None: ...
    def take_idle(self) -> int: ...
    def fullest(self) -> Stream | None: ...
