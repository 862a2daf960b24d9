"""`frontend --record`: a file for each model, and one line for each answer, however it is made."""

from pathlib import Path
from typing import Any

import pytest
from support.observability.recorded import lines_of
from support.polling import until
from support.servers.discovered_fleet import Backend, registered
from support.servers.model_serving import TINY, ModelClient, model_serving

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.traces.trace import read_record
from dynamo_router.server.observability import ObservabilityConfig


async def written(client: ModelClient, lines: int) -> None:
    recorder: Any = client.server.parts.recorder
    await until(lambda: recorder.lines["written"] == lines)


async def test_each_model_has_a_record_of_its_own(backend: Backend, tmp_path: Path) -> None:
    seen = ObservabilityConfig(record=str(tmp_path / "a.jsonl.gz"))
    async with (
        registered(backend, 1, model_id="one", engine=TINY),
        registered(backend, 1, model_id="two", engine=TINY) as two,
        model_serving(backend, observability=seen) as client,
    ):
        await client.until_shares(one=1, two=1)
        asked = [await client.complete(model) for model in ("one", "two", "two")]
        assert [status for status, _ in asked] == [200] * 3
        assert (await client.complete("three"))[0] == 404
        await written(client, 3)
        paths = [tmp_path / f"a-{model}.jsonl.gz" for model in ("one", "two")]
        (header,), lines = lines_of(paths[1])
        assert header["model"] == "two" and len(lines) == 2
        for line, (_, body) in zip(lines, asked[1:], strict=True):
            assert line["output_length"] == body["usage"]["completion_tokens"] == 4
            assert line["input_length"] == body["usage"]["prompt_tokens"]
            assert line["worker"] == str(next(iter(two.worker_ids)))
        with pytest.raises(ConfigError, match="another record than .* of another model"):
            read_record([str(path) for path in paths])


async def test_a_prompt_that_a_prefill_worker_computes_is_one_line(
    backend: Backend, tmp_path: Path
) -> None:
    seen = ObservabilityConfig(record=str(tmp_path / "a.jsonl"))
    async with (
        registered(backend, 1, model_id="m", engine=TINY, disaggregation_mode="prefill"),
        registered(backend, 1, model_id="m", engine=TINY, disaggregation_mode="decode") as decode,
        model_serving(backend, observability=seen) as client,
    ):
        await until(lambda: any(pool.answers and pool.share for pool in client.server.models.pools))
        status, body = await client.complete("m", stream=False)
        assert status == 200, body
        await written(client, 1)
    _, (line,) = lines_of(tmp_path / "a-m.jsonl")
    assert line["worker"] == str(next(iter(decode.worker_ids)))
    assert (line["status"], line["output_length"]) == ("ok", body["usage"]["completion_tokens"])
