"""How the processes of the hostile benchmark are told when to misbehave: by two signals."""

import asyncio
import signal

ON, OFF = signal.SIGUSR1, signal.SIGUSR2


class Switch:
    """Off until ON arrives, and again from OFF on. Made on the running loop."""

    def __init__(self) -> None:
        self._on = asyncio.Event()
        self._off = asyncio.Event()
        self._off.set()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(ON, self._set, True)
        loop.add_signal_handler(OFF, self._set, False)

    @property
    def on(self) -> bool:
        return self._on.is_set()

    async def wait(self, on: bool) -> None:
        """Until it is on, or off."""
        await (self._on if on else self._off).wait()

    def _set(self, on: bool) -> None:
        first, second = (self._off, self._on) if on else (self._on, self._off)
        first.clear()
        second.set()
