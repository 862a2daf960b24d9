#!/bin/sh
# Makes router_pb2, processing_pb2 and openengine_pb2 (.py and .pyi) from the .proto beside them. Needs grpcio-tools
# of the LOWEST grpcio that pyproject.toml allows: generated code refuses an older protobuf.
set -e
cd "$(dirname "$0")/../../build/tree"
for protocol in router/proto/router frontend/epp/proto/processing workers/token_services/proto/openengine; do
    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. "dynamo_router/$protocol.proto"
    sed -i '1i # mypy: disable-error-code=type-arg' "dynamo_router/${protocol}_pb2.pyi"
done
