"""A frontend whose model thinks and calls tools as Qwen3 does, and what that model writes."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from support.fake_engine import FakeEngine
from support.servers.openai_serving import Served, openai_serving

from dynamo_router.frontend.config import FrontendConfig

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CALLED = '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>'
SAID = f"<think>hm</think>Look.{CALLED}"


def tool_serving(engine: FakeEngine, **more: Any) -> AbstractAsyncContextManager[Served]:
    """See openai_serving."""
    config = FrontendConfig(http_frontend=0, reasoning_parser="qwen3", tool_call_parser="hermes")
    return openai_serving(engine, frontend=config, **more)
