"""What a process asks of its machine."""

import socket
from typing import Any

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.process.system import reachable_host

V4 = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 0))
V6 = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::7", 0, 0, 0))


@pytest.mark.parametrize(
    ("host", "known", "reached"),
    [
        ("::1", [], "::1"),
        ("0.0.0.0", [V6, V4], "10.0.0.7"),
        ("::", [V6, V4], "10.0.0.7"),
        ("::", [V6], "2001:db8::7"),
        ("::", [], None),
        ("0.0.0.0", [V6], None),
    ],
)
def test_an_address_of_ours_that_others_reach(
    host: str, known: list[Any], reached: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(name: str, port: None, family: int, kind: int) -> list[Any]:
        found = [each for each in known if family in (socket.AF_UNSPEC, each[0])]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    if reached is not None:
        assert reachable_host(host) == reached
    else:
        with pytest.raises(ConfigError, match="has none: Name or service not known"):
            reachable_host(host)


def test_a_name_of_ours_that_is_too_long_for_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "x" * 64)
    with pytest.raises(ConfigError, match="our name 'x+' has none: .*too long"):
        reachable_host("0.0.0.0")
