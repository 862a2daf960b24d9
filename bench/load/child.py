"""The processes of benchmarks and demos: each runs until the stack ends that it was started for."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

from ...base.errors import RouterError
from ...process.child_process import ChildError, ChildProcess

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0

OURS = (sys.executable, "-P", "-m", "dynamo_router")
"""-P: what lies in the current directory must not take a module's place."""


async def start_child(
    name: str,
    command: Sequence[str],
    stack: AsyncExitStack,
    is_ready: Callable[[str], object] = bool,
    *,
    timeout_s: float = START_TIMEOUT_S,
    env: Mapping[str, str] | None = None,
    join_stderr: bool = True,
) -> ChildProcess:
    """A process for which a line that it printed `is_ready`; by default that is the first one.

    It has a session of its own: Ctrl-C in our terminal is ours alone to take and to pass on.
    `env` and `join_stderr` are those of ChildProcess. RouterError, with the name and what it
    printed last, if it does not come about in time.
    """
    child = ChildProcess(
        command,
        stop_timeout_s=STOP_TIMEOUT_S,
        join_stderr=join_stderr,
        own_session=True,
        env=env,
    )
    stack.push_async_callback(child.stop)
    try:
        await child.start(is_ready, timeout_s)
    except ChildError as error:
        raise failed_child(name, error.reason, error.output) from None
    except OSError as error:
        raise RouterError(f"{name} was not started: {error}") from None
    return child


def pid_of(child: ChildProcess) -> int:
    """RouterError if it does not run any more."""
    if child.pid is None:
        raise RouterError("\n".join(("a process of the bench ended:", *child.output)))
    return child.pid


def failed_child(name: str, what: str, output: Sequence[str]) -> RouterError:
    """Of what a process did that was not meant to."""
    lines = "\n".join(f"  {line}" for line in output) or "  (it printed nothing)"
    return RouterError(f"{name} {what}:\n{lines}")
