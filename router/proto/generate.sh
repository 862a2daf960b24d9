#!/bin/sh
# Makes router_pb2*.py, processing_pb2.py and openengine_pb2.py, and their .pyi, from the .proto beside them. Needs
# grpcio-tools of the LOWEST grpcio that pyproject.toml allows (generated code refuses an older
# grpcio), mypy-protobuf and ruff.
set -e
cd "$(dirname "$0")/../../build/tree"
own=dynamo_router/router/proto envoy=dynamo_router/frontend/epp/proto
engine=dynamo_router/workers/token_services/proto
python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --mypy_out=. \
    --mypy_grpc_out=. $own/router.proto
python -m grpc_tools.protoc -I. --python_out=. --mypy_out=. $envoy/processing.proto
python -m grpc_tools.protoc -I. --python_out=. --mypy_out=. $engine/openengine.proto
sed -i 's/^from dynamo_router\.router\.proto import/from . import/' $own/router_pb2_grpc.py $own/router_pb2_grpc.pyi
for stub in $own/router_pb2.pyi $own/router_pb2_grpc.pyi $envoy/processing_pb2.pyi \
    $engine/openengine_pb2.pyi; do
    sed -i '1i # ruff: noqa' $stub
    ruff format -q $stub
done
