"""The servers: gRPC (the engine's own protocol, RouterService, health) and HTTP.

Entered by `serve` alone.
"""
