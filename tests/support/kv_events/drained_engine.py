"""/kv_cache_events as TensorRT-LLM's OpenAI server has it: each event is told once."""

import json
from typing import Any

from aiohttp import web
from support.free_port import free_port


class DrainedEngine:
    """Numbers events by rank, as the documentation has it. Listens between `start` and `stop`."""

    def __init__(self) -> None:
        self.port = free_port()
        self.waiting: list[dict[str, Any]] = []
        self.next: dict[int, int] = {}
        self.status = 200
        self.body: bytes | None = None
        self.asked = 0
        self.answers_lost = 0  # of the next ones: the connection breaks in their midst
        self.told_twice = 0  # of the next ones: what they told comes once more
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        application = web.Application()
        application.router.add_get("/kv_cache_events", self.answer)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def begin_anew(self) -> None:
        """As another process: what waits is gone, and its numbers begin."""
        self.waiting.clear()
        self.next.clear()

    def happen(self, data: dict[str, Any], rank: int = 0, lost: bool = False, **more: Any) -> None:
        event_id = self.next.get(rank, 0)
        self.next[rank] = event_id + 1
        event = {"event_id": event_id, "data": data, **more}
        if rank:
            event["attention_dp_rank"] = rank
        if not lost:
            self.waiting.append(event)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.status != 200:
            return web.Response(status=self.status)
        events, self.waiting = self.waiting, []
        body = json.dumps([*events, {}]).encode() if self.body is None else self.body
        if events and self.answers_lost:
            self.answers_lost -= 1
            assert request.transport is not None
            request.transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + body[:40]
            )
            request.transport.close()
        elif events and self.told_twice:
            self.told_twice -= 1
            self.waiting = events
        return web.Response(body=body, content_type="application/json")


def stored(block_hash: Any, tokens: list[int], parent: Any = None, **more: Any) -> dict[str, Any]:
    """A stored event of one block."""
    return {
        "type": "stored",
        "parent_hash": parent,
        "blocks": [one_block(block_hash, tokens, more)],
    }


def one_block(block_hash: Any, tokens: list[int], more: dict[str, Any]) -> dict[str, Any]:
    """A block of a stored event, with its tokens."""
    unique = [{"type": "unique_token", "token_id": t, "token_extra_id": 0} for t in tokens]
    kept = {"type": "stored_block", "block_hash": block_hash, "cache_level": 0, "priority": 35}
    return {**kept, "tokens": unique, **more}
