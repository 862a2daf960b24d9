"""How is an engine called? What any client of one is, and those of other dialects than trtllm."""

from ..channels import EngineCall
from .dynamo_client import DynamoClient, DynamoRoute
from .engine_client import EngineClient
from .openai_client import OpenAiClient

__all__ = ["DynamoClient", "DynamoRoute", "EngineCall", "EngineClient", "OpenAiClient"]
