"""Engines of others as ServedEngines: TensorRT-LLM and vLLM, each in this process.

Entered by the commands `dynamo-router worker trtllm` and `dynamo-router worker vllm`.
"""

from .cache_mirror import CacheMirror
from .config import TrtllmConfig
