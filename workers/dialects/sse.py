"""Server-sent events, read as they come. Pure.

Source: the HTML standard, "Server-sent events", section on interpreting an event stream.
"""

from collections.abc import Iterator


class EventReader:
    """Feed it the bytes of a stream; it gives the data of each event that they complete.

    Names, ids and retry times of events are passed over, and so are comments and fields that
    nobody knows. An event that its stream does not end with an empty line is none.
    """

    def __init__(self, max_bytes: int) -> None:
        """OverflowError(limit) comes of an event longer than `max_bytes`."""
        self._max_bytes = max_bytes
        self._rest = bytearray()  # of a line that has not ended
        self._data: list[bytes] = []  # the data lines of the event that has not ended
        self._bytes = 0  # in them
        self._first = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of each event that ends in these bytes, in order; take all of them."""
        # A line is looked at when it has ended, and not with each of the parts that it comes in.
        ended = self._rest.endswith(b"\r") or b"\n" in data or b"\r" in data
        self._rest += data
        lines: list[bytes] = []
        if ended:
            *lines, rest = _lines(bytes(self._rest))
            self._rest = bytearray(rest)
        for line in lines:
            self._check(len(line))
            if self._first:
                line, self._first = line.removeprefix(b"\xef\xbb\xbf"), False
            if not line:
                if self._data:
                    event, self._data, self._bytes = b"\n".join(self._data), [], 0
                    yield event
                continue
            field, _, value = line.partition(b":")
            if field == b"data":
                self._bytes += len(value) + 1
                self._data.append(value.removeprefix(b" "))
        self._check(len(self._rest) - self._rest.endswith(b"\r"))

    def _check(self, more: int) -> None:
        """A line, or what there is of it, after what there is of its event."""
        if self._bytes + more > self._max_bytes:
            raise OverflowError(self._max_bytes)


def _lines(data: bytes) -> list[bytes]:
    """Split after LF, CR LF or CR; the last one is what has not ended. A CR at the end waits, since
    an LF may follow."""
    held = data.endswith(b"\r")
    body = data[:-1] if held else data
    lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    if held:
        lines[-1] += b"\r"
    return lines
