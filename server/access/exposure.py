"""What a configuration leaves open to any host that reaches it, logged at the start."""

from collections.abc import Sequence

from ...base.urls import joined
from .loopback import is_loopback


def open_to_others(
    *,
    host: str,
    port: int,
    http_port: int,
    admin: tuple[str, int],
    tls: bool,
    identified: bool,
    plain_workers: Sequence[str] = (),
) -> list[str]:
    """What is open, one line for each. Empty where only this machine can reach the listeners.

    `identified`: callers need a token or a certificate. `plain_workers` are addresses that go
    without TLS although it was asked for.
    """
    lines = []
    grpc, http, admin_at = joined(host, port), joined(host, http_port), joined(*admin)
    if not is_loopback(host):
        if not identified:
            lines.append(
                f"grpc {grpc} is open: any host that reaches it may generate, select workers and"
                " read the state of the fleet (--auth-tokens or --tls-client-ca)"
            )
            lines.append(
                f"http {http} is open: any host that reaches it may read metrics, workers and"
                " overlaps (--auth-tokens or --tls-client-ca)"
            )
        if not tls:
            what = "requests, answers and tokens" if identified else "requests and answers"
            lines.append(f"{what} travel readable to and from {grpc} and {http} (--tls-cert)")
    if not is_loopback(admin[0]):
        if not identified:
            lines.append(
                f"admin {admin_at} is open: any host that reaches it may change the configuration"
                " (--auth-tokens, or --admin-host 127.0.0.1)"
            )
        if not tls and admin[0] != host:
            lines.append(f"admin calls travel readable to {admin_at} (--tls-cert)")
    if plain_workers:
        them = ", ".join(plain_workers)
        lines.append(f"workers at grpc://, not grpcs://, are reached without TLS: {them}")
    return lines
