"""A process of `serve --fronts N`: the decider, or one of the fronts. Started by its Supervisor.

    python -m dynamo_router.server.front_process decider FOLDER
    python -m dynamo_router.server.front_process front FOLDER NUMBER

FOLDER is private to the user, and has the configuration and the decider's socket.
"""

import faulthandler
import sys
from dataclasses import replace
from pathlib import Path

import structlog

from ..base.clock import SystemClock
from ..process.logs import LogOutput
from .command import run_service
from .fronts import SHOW_STACK, Decider, Front, FrontPlace, read_config
from .server import Server


def main(words: list[str]) -> int:
    """Serve until a signal; the exit code."""
    role, folder = words[0], Path(words[1])
    faulthandler.register(SHOW_STACK)
    config = read_config(folder)
    if role == "decider":
        # Nobody comes to it but fronts: there is nothing to wait for.
        config = replace(config, lame_duck_s=0.0, drain_timeout_s=0.0)

        def decider(output: LogOutput) -> Server:
            server = Server(config, output=output, listens=False)
            server.attached = Decider(server, folder, config.fronts.fronts, SystemClock())
            return server

        structlog.contextvars.bind_contextvars(process="decider")
        return run_service(config, decider)
    number = int(words[2])
    structlog.contextvars.bind_contextvars(process=f"front {number}")
    place = FrontPlace(number, config.port, folder)
    return run_service(config, lambda output: Front(config, place))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
