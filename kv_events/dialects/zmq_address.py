"""Why no message comes from the address of an engine's ZMQ publisher, by trying it without ZMQ."""

import asyncio
import os
from contextlib import suppress
from urllib.parse import urlsplit

TRY_S = 1.0
"""How long a connection, and a greeting, may take."""
BINDING = (
    "vLLM and SGLang bind an endpoint (--kv-events-config) only if it is tcp://*:PORT or ipc://PATH,"
    " and connect to any other"
)
_GREETING = 10
"""Bytes with which a peer begins that speaks ZMQ: 0xff, eight of padding, 0x7f."""


async def why_unheard(address: str) -> str:
    """A sentence on what is at tcp://HOST:PORT or ipc://PATH, for people."""
    scheme, _, path = address.partition("://")
    try:
        async with asyncio.timeout(TRY_S):
            if scheme == "ipc":
                reader, writer = await asyncio.open_unix_connection(_ipc_path(path))
            else:
                parts = urlsplit(address)
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except FileNotFoundError:
        return f"there is no socket {address}: {BINDING}"
    except ConnectionRefusedError:
        return f"nothing listens at {address}: {BINDING}"
    except TimeoutError:
        return f"{address} does not answer: is the host up, and the port open to this one?"
    except (OSError, ValueError) as error:
        return f"{address} cannot be reached: {error}"
    try:
        async with asyncio.timeout(TRY_S):
            begin = await reader.readexactly(_GREETING)
    except (TimeoutError, OSError, asyncio.IncompleteReadError):
        begin = b""
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    if begin[:1] == b"\xff" and begin[-1:] == b"\x7f":
        return f"{address} speaks ZMQ, but is no publisher: is it the replay endpoint?"
    return f"what listens at {address} does not speak ZMQ: is it the port of something else?"


def _ipc_path(path: str) -> str:
    """As ZMQ reads it: a leading @ is Linux's abstract namespace."""
    return "\0" + path[1:] if path.startswith("@") else os.fspath(path)
