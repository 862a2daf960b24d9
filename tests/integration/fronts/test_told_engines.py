"""What engines are told by a front is what the router in one process tells them."""

from pathlib import Path

import msgspec
from support.fake_engine import prompt
from support.fronts.clients import engine, urls
from support.fronts.processes import serve_fronts
from support.servers.http_engine import WHOLE, HttpEngine

SERVE = ("--no-kv-events", "--block-size", "16", "--policy", "dynamo")


async def test_the_key_of_engines_that_ask_for_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("key-of-engines\n")
    file.chmod(0o600)
    async with HttpEngine({"/v1/completions": WHOLE}) as one:
        words = (*SERVE, "--worker-api-key-file", str(file), "--worker", one.url)
        async with serve_fronts(tmp_path / "router", *words) as served:
            *_, last = await served.answers(prompt("asked", 8))
        assert list(last.complete.output_token_ids) == [11, 12]
        shown = {(asked.path, asked.headers.get("authorization")) for asked in one.asked}
        assert ("/v1/completions", "Bearer key-of-engines") in shown
        assert {key for _, key in shown} == {"Bearer key-of-engines"}


async def test_what_to_keep_for_a_session(tmp_path: Path) -> None:
    kept = ("--router-session-retention-secs", "60")
    async with engine() as one, serve_fronts(tmp_path, *SERVE, *kept, *urls(one)) as served:
        async with served.client() as client:
            session = (("x-dynamo-session-id", "a session"),)
            call = client.call(prompt("asked"), metadata=session)
            assert await call.read()
            call.cancel()
        (request,) = one.requests
        said = msgspec.json.decode(request.kv_cache_retention.config_json)
        (asked,) = said["token_range_retention_configs"]
        assert asked["duration_ms"] == 60_000 and asked["priority"] == 80
