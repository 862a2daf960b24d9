"""What the line of a request asks for."""

import httptools


def split_url(url: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Path, query, and of a URL as for proxies the host and port; None: there is no path."""
    if url[:1] == b"/" and url.isascii() and b"#" not in url:
        path, _, query = url.partition(b"?")
        return path, query, b""
    try:
        parsed = httptools.parse_url(url)
        parsed.path.decode("ascii")
    except (httptools.HttpParserError, UnicodeDecodeError, AttributeError):
        return None
    host = url.partition(b"://")[2].partition(parsed.path)[0]
    return parsed.path, parsed.query or b"", host
