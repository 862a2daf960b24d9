"""A request on two engines that speak OpenAI's HTTP, as vLLM with a NixlConnector does."""

import json
from typing import Any

from support.fake_engine import prompt
from support.polling import until
from support.servers.http_engine import WHOLE, HttpEngine, part, reply
from support.serving import serving

from dynamo_router.router.disagg import DisaggConfig

PATH = "/v1/completions"
PARAMS = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_engine_id": "4f3c_dp0",
    "remote_request_id": "cmpl-r1",
    "remote_block_ids": [[12, 13, 14]],
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}


def prefilled(**more: Any) -> bytes:
    usage = {"prompt_tokens": 32, "prompt_tokens_details": {"cached_tokens": 16}}
    return reply(json.dumps({**part(11, reason="length"), "usage": usage, **more}).encode())


async def answered(prefill: HttpEngine, decode: HttpEngine) -> Any:
    """The last message of a request that both were to share."""
    config = DisaggConfig(disagg="always")
    async with serving(
        workers=(decode.url,), prefill_workers=(prefill.url,), disagg=config
    ) as ports:
        pools: Any = ports.server._server.pools
        await until(lambda: pools.prefill.monitor.any_ready)
        answers = await ports.answers(prompt("r1", 32))
        assert [list(each.chunk.token_ids) for each in answers[:-1]] == [[11], [12]]
        for pool in pools.running:
            await until(lambda pool=pool: not int(pool.router.slots.own_requests().sum()))
        return answers[-1].complete


async def test_what_the_prefill_engine_says_goes_on_unchanged() -> None:
    async with (
        HttpEngine({PATH: prefilled(kv_transfer_params=PARAMS)}) as prefill,
        HttpEngine({PATH: WHOLE}) as decode,
    ):
        last = await answered(prefill, decode)
        (first,), (then,) = prefill.generations, decode.generations
        assert first["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
        assert (first["max_tokens"], first["stream"]) == (1, False)
        assert "stream_options" not in first
        assert then["kv_transfer_params"] == PARAMS
        assert (then["max_tokens"], then["stream"]) == (4, True)
        assert last.cached_tokens == 16


async def test_without_params_the_decode_engine_computes_the_prompt() -> None:
    async with (
        HttpEngine({PATH: prefilled()}) as prefill,
        HttpEngine({PATH: WHOLE}) as decode,
    ):
        await answered(prefill, decode)
        assert len(prefill.generations) == 1
        assert ["kv_transfer_params" in asked for asked in decode.generations] == [False]
