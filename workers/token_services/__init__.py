"""How is an engine called that takes and returns token ids by a gRPC service of its own?

vLLM's and SGLang's: translated into trtllm.TrtllmService and back.
"""

from .client import TokenServiceClient
from .finding import find_service
