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

from ..process.logs import LogOutput
from .command import run_service
from .fronts import SHOW_STACK, Decider, Front, FrontPlace, read_config
from .live_settings import LiveSettings
from .pool import ConfiguredPool
from .router_server import admin_server, watch_servers
from .server import Server
from .server_parts import ServerParts


def main(words: list[str]) -> int:
    """Serve until a signal; the exit code."""
    role, folder = words[0], Path(words[1])
    faulthandler.register(SHOW_STACK)
    config = read_config(folder)
    if role == "decider":
        # Nobody comes to it but fronts: there is nothing to wait for.
        config = replace(config, lame_duck_s=0.0, drain_timeout_s=0.0)

        def make(output: LogOutput) -> Server:
            parts = ServerParts(config, output=output, processes=lambda: decider.health())
            pool = ConfiguredPool(parts)
            page, settings = parts.metrics.page(pool.metrics_pages), LiveSettings(parts, pool)
            http = admin_server(parts, pool, page, settings)
            watch_servers(parts, pool.calls, [http])
            fronts = config.fronts.fronts
            decider = Decider(pool.workers, page, parts.turn_away, folder, fronts, parts.clock)

            def exposed() -> list[str]:
                return parts.security.exposed(config.port, http.port, http.admin)

            return Server(parts, pool, [http, decider], settings, exposed=exposed)

        structlog.contextvars.bind_contextvars(process="decider")
        return run_service(config, make)
    number = int(words[2])
    structlog.contextvars.bind_contextvars(process=f"front {number}")
    place = FrontPlace(number, config.port, folder)
    return run_service(config, lambda output: Front(config, place))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
