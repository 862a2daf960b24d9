"""Engines without a GPU: a pure scheduling core behind a real gRPC server."""
