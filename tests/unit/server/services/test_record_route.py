"""GET /record: only where requests are recorded, and by the number of a line."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.observability.recorded import BLOCK, SALT, ended
from support.polling import until

from dynamo_router.router.config import KvRouterConfig
from dynamo_router.router.kv_router import KvRouter
from dynamo_router.server.record import Recorder
from dynamo_router.server.services import RecordRoute
from dynamo_router.transport.http1 import HttpError


class Call:
    """What the route asks of an HttpCall."""

    def __init__(self, **parameters: str) -> None:
        self.parameters, self.answer_headers, self.body = parameters, dict[str, str](), b""

    async def send(self, message: Any) -> None:
        self.body += message.get("body", b"")


def test_without_a_record_there_is_no_route() -> None:
    assert RecordRoute(None).routes == {}


async def test_lines_after_a_number(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.jsonl", SALT, max_bytes=1 << 20, kept=2)
    handler: Any = RecordRoute(recorder).routes["GET /record"]
    with KvRouter(KvRouterConfig(block_size=BLOCK, use_kv_events=False)) as router:
        await handler(first := Call())
        assert json.loads(first.body)["lines"] == []
        file = recorder.file_of("tiny", router)
        recorder.start()
        for _ in range(3):
            recorder.put(file, *ended())
        await until(lambda: recorder.lines["written"] == 3)
        await handler(call := Call(since="1"))
        page = json.loads(call.body)
        assert (page["last"], page["missed"]) == (3, 0)
        assert [line["number"] for line in page["lines"]] == [2, 3]
        assert page["lines"][0]["line"]["input_length"] == ended().request.facts.prompt.isl
        assert page["headers"]["tiny"]["engine_block_size"] == BLOCK
        await recorder.close()
    for since in ("-1", "x", "1" * 16, "²"):
        with pytest.raises(HttpError, match="is not the number of a line"):
            await handler(Call(since=since))
