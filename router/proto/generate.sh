#!/bin/sh
# Makes router_pb2*.py and their .pyi from router.proto. Needs grpcio-tools of the LOWEST grpcio
# that pyproject.toml allows (generated code refuses an older grpcio), mypy-protobuf and ruff.
set -e
cd "$(dirname "$0")/../../build/tree"
python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --mypy_out=. \
    --mypy_grpc_out=. dynamo_router/router/proto/router.proto
cd dynamo_router/router/proto
sed -i 's/^from dynamo_router\.router\.proto import/from . import/' router_pb2_grpc.py router_pb2_grpc.pyi
sed -i '1i # ruff: noqa' router_pb2.pyi router_pb2_grpc.pyi
ruff format -q router_pb2.pyi router_pb2_grpc.pyi
