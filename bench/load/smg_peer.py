"""SMG, a gateway in Rust (`pip install smg`): OpenAI's API in front of the same mock engines."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from .child import pid_of
from .dynamo_peer import HOST, free_port, start_silent, until_answered


async def start_smg(
    program: str,
    addresses: Sequence[str],
    model_path: str,
    model: str,
    timeout_s: float,
    stack: AsyncExitStack,
) -> tuple[int, str]:
    """Start it in front of these engines, which it chooses by what their caches may have, until the
    stack ends; its pid and address. It uses all cores. RouterError if it does not start."""
    port = free_port()
    command = [
        *(program, "launch", "--host", HOST, "--port", str(port), "--policy", "cache_aware"),
        *("--prometheus-host", HOST, "--prometheus-port", str(free_port())),
        *("--tokenizer-path", model_path, "--worker-startup-check-interval", "1"),
        *("--log-level", "warn", "--worker-urls"),
        *(f"grpc://{address}" for address in addresses),
    ]
    child = await start_silent(command, {}, timeout_s, stack)
    asked = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    url = f"http://{HOST}:{port}/v1/chat/completions"
    await until_answered((child,), "POST", url, timeout_s, asked, name="SMG")
    return pid_of(child), f"{HOST}:{port}"
