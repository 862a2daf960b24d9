"""The messages of trtllm.TrtllmService, as TensorRT-LLM itself serves them."""

# smg-grpc-proto carries no py.typed marker: its messages are untyped, and this is the one place
# that says so.
from smg_grpc_proto.generated import (  # type: ignore[import-untyped]
    common_pb2 as common_pb,
)
from smg_grpc_proto.generated import (
    trtllm_service_pb2 as pb,
)

__all__ = ["SERVICE", "common_pb", "pb"]

SERVICE = "trtllm.TrtllmService"
