"""TransferFacts: how an engine hands the KV cache of a prompt to another one."""

from dataclasses import dataclass

PARCEL = "parcel"
"""The prefill's answer has what the decode worker needs, in words of the two engines: mock engines,
and Dynamo's workers that publish nothing else."""
BOOTSTRAP = "bootstrap"
"""Both engines meet at the prefill worker's bootstrap server: SGLang."""
NIXL, NIXL_PUSH, MOONCAKE = "nixl", "nixl_push", "mooncake"
"""vLLM's connectors: NixlConnector, NixlPushConnector, MooncakeConnector."""
TRTLLM_SERVE = "trtllm_serve"
"""TensorRT-LLM's HTTP server: `disaggregated_params` of OpenAI's completions."""
OPENENGINE = "openengine"
"""OpenEngine's services: the session that a prefill's answer names."""
NONE = "none"
"""It has no words for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferFacts:
    """Found when a worker is attached. "" and 0: it does not say, and any will do."""

    connector: str = ""
    role: str = ""
    """prefill or decode, where its engine runs nothing else"""
    host: str = ""
    """of its bootstrap server or side channel"""
    port: int = 0
    engine_ids: tuple[str, ...] = ()
    """by which its ranks know each other, in their order"""
    block_size: int = 0
    """of its own blocks, in tokens"""
    cache_type: str = ""
    """how numbers are kept in its blocks"""
    pairing: str = ""
    """what its operator says that both halves must have in common"""

    @property
    def runs_whole(self) -> bool:
        """Whether it runs a whole request, as far as is known: SGLang's engines that have a
        disaggregation mode do not, and OpenEngine has a failure for a role that does not fit."""
        return self.connector != BOOTSTRAP and not (self.connector == OPENENGINE and self.role)
