"""A worker whose publisher cannot be heard: predicted from the start, and diagnosed by name."""

from pathlib import Path

from support.fleet import BLOCK, PROMPT, Fleet
from support.free_port import free_port
from support.polling import until
from support.processes import Command


class Unheard(Fleet):
    """Engines whose URL names a ZMQ publisher that does not listen."""

    def __init__(self, folder: Path, *serve: str) -> None:
        super().__init__(folder, *serve, with_nats=False)
        self.events = f"tcp://127.0.0.1:{free_port()}"

    def url(self, port: int) -> str:
        return f"{super().url(port)}?events={self.events}"

    async def start_engine(self, number: int, *more: str) -> Command:
        return await super().start_engine(number, "--no-kv-stream", *more)


async def test_a_publisher_that_does_not_listen_is_named_and_its_worker_predicted(
    tmp_path: Path,
) -> None:
    async with Unheard(tmp_path) as fleet:

        async def predicted() -> bool:
            rows = (await fleet.workers()).values()
            states = {(row["event_source"], row["event_source_state"]) for row in rows}
            return states == {("predicted", "approximate")}

        await until(predicted)
        await fleet.ask(PROMPT)
        assert sorted((await fleet.overlaps(PROMPT)).values()) == [len(PROMPT) // BLOCK]
        tokens, cached = await fleet.ask([*PROMPT, 1])
        assert cached == len(PROMPT), "it went to the worker that has it"

        async def named() -> bool:
            errors = [row["event_error"] or "" for row in (await fleet.workers()).values()]
            return all(f"nothing listens at {fleet.events}: vLLM" in error for error in errors)

        await until(named)
        line = await fleet.router.says("KV events unavailable, predicting cache")
        assert f"nothing listens at {fleet.events}" in line
        assert sorted((await fleet.overlaps(PROMPT)).values()) == [len(PROMPT) // BLOCK]
        ready = await fleet.router.says("dynamo-router ready")
        assert "events from engines (no NATS server" in ready
