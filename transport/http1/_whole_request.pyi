"""Types of the kernel that reads a request of the usual kind. Calls go through connection.py."""

AT_MOST_ONCE: tuple[bytes, ...]
"""Headers of which who was in between may have gone by another one of two than we would."""

def read_whole_request(
    data: bytes, most_head_bytes: int, most_headers: int
) -> tuple[str, bytes, bytes, list[tuple[bytes, bytes]], bytes, int] | None:
    """(method, path, query, headers, body, bytes of the body that are to come) of bytes that are
    one request of HTTP/1.1, GET or POST, whose path and headers have nothing that is read in more
    than one way, whose body has a length, and after which the connection stays. None for all else.
    """

def decoded(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers as text; of one that comes twice the first."""
