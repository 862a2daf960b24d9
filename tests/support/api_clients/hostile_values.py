"""Values that stand in a field of a request where another one is meant, as JSON."""

from collections.abc import Mapping
from io import BytesIO

from support.servers.openai_serving import Served

HOSTILE = (
    b"null",
    b"true",
    b"false",
    b"-1",
    b"0",
    b"9223372036854775808",
    b"1e999",
    b"NaN",
    b'""',
    b'"\\ud800"',
    b'"\xff"',
    b"[]",
    b"{}",
    b"[null]",
    b'[{"type": "text"}]',
    b'{"type": []}',
    b'{"type": {"type": 5}, "name": 7}',
    b"[" * 1000 + b"]" * 1000,
    b'{"a":' * 1000 + b"1" + b"}" * 1000,
    b'"' + b"x" * (1 << 20) + b'"',
    b"[" + b"0," * (1 << 16) + b"0]",
)


async def answer_to(served: Served, path: str, fields: Mapping[str, bytes]) -> tuple[int, bytes]:
    """(status, body) of a request with these fields, whatever form its answer has."""
    sent = b", ".join(b'"%b": %b' % (name.encode(), value) for name, value in fields.items())
    url = served.url + path
    async with served.session.post(url, data=BytesIO(b"{%b}" % sent)) as answer:
        return answer.status, await answer.read()
