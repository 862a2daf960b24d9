"""How bytes travel: HTTP/2 and gRPC on it, HTTP/1.1, TLS and secrets, connections to NATS."""
