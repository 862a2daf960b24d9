"""Which address, Host and Origin a request may come with; what is said to be open."""

from pathlib import Path

import pytest

from dynamo_router.server.access import Access
from dynamo_router.server.access.exposure import open_to_others
from dynamo_router.server.access.http_guard import AdminAddress, HttpGuard, PageCheck, is_own_origin
from dynamo_router.server.access.loopback import is_loopback
from dynamo_router.server.access.security import admin_address
from dynamo_router.transport.http1 import Asked, HttpError


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:8081", True),
        ("10.1.2.3", True),
        ("[::1]:8081", True),
        ("localhost:8081", True),
        ("LOCALHOST.", True),
        ("a.localhost:1", True),
        ("router.example:8081", True),
        ("Router.Example", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:8081", False),
        ("localhost.evil.example", False),
        ("xlocalhost", False),
        ("router.example.evil", False),
        ("", False),
        (None, False),
        (":8081", False),
        ("[::1", False),
        ("user@evil.example", False),
    ],
)
def test_a_host_is_ours_if_no_other_name_can_point_at_us(host: str | None, ours: bool) -> None:
    assert PageCheck(Access(), ["Router.example"]).is_ours(host) is ours


@pytest.mark.parametrize(
    ("origin", "ours"),
    [
        ("http://127.0.0.1:8081", True),
        ("HTTP://127.0.0.1:8081", True),
        ("https://127.0.0.1:8081", False),
        ("http://127.0.0.1", False),
        ("http://127.0.0.1:80810", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
    ],
)
def test_an_origin_is_ours_if_it_is_the_address_asked(origin: str, ours: bool) -> None:
    assert is_own_origin(origin, "http", "127.0.0.1:8081") is ours


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # host, HTTP port, --admin-host, --admin-port -> address, a socket of its own
        (("127.0.0.1", 8081, None, None), (("127.0.0.1", 8081), False)),
        (("localhost", 8081, None, None), (("localhost", 8081), False)),
        (("::1", 8081, None, None), (("::1", 8081), False)),
        (("0.0.0.0", 8081, None, None), (("127.0.0.1", 8081), False)),
        (("::", 8081, None, None), (("127.0.0.1", 8081), False)),
        (("10.0.0.5", 8081, None, None), (("127.0.0.1", 8081), True)),
        (("router.example", 8081, None, None), (("127.0.0.1", 8081), True)),
        (("127.0.0.1", 8081, None, 9000), (("127.0.0.1", 9000), True)),
        (("127.0.0.1", 8081, None, 0), (("127.0.0.1", 0), True)),
        (("0.0.0.0", 8081, "0.0.0.0", None), (("0.0.0.0", 8081), False)),
        (("0.0.0.0", 8081, "10.0.0.5", None), (("10.0.0.5", 8081), False)),
        (("10.0.0.5", 8081, "10.0.0.5", 8081), (("10.0.0.5", 8081), False)),
        (("10.0.0.5", 8081, "10.0.0.6", None), (("10.0.0.6", 8081), True)),
    ],
)
def test_where_admin_routes_are_served(given: tuple, expected: tuple) -> None:  # type: ignore[type-arg]
    assert admin_address(*given) == expected


@pytest.mark.parametrize(
    ("listener", "address", "reached"),
    [
        (("127.0.0.1", 8081), ("127.0.0.1", 8081), True),
        (("127.0.0.1", 8081), ("127.0.0.1", 8082), False),
        (("127.0.0.1", 8081), ("10.0.0.5", 8081), False),
        (("127.0.0.1", 8081), ("::1", 8081), True),
        (("127.0.0.1", 8081), ("::ffff:127.0.0.1", 8081), True),
        (("127.0.0.1", 8081), ("::ffff:10.0.0.5", 8081), False),
        (("0.0.0.0", 8081), ("10.0.0.5", 8081), True),
        (("10.0.0.5", 8081), ("127.0.0.1", 8081), False),
        (("localhost", 8081), ("::1", 8081), True),
        (("localhost", 8081), ("10.0.0.5", 8081), False),
        (("admin.example", 8082), ("10.0.0.5", 8082), True),
        (("127.0.0.1", 8081), ("", 0), False),
    ],
)
def test_a_connection_came_in_by_the_admin_listener(
    listener: tuple[str, int], address: tuple[str, int], reached: bool
) -> None:
    assert AdminAddress(*listener).is_reached_by(*address) is reached


def test_loopback_is_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "router.example", "")))


ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"


def asked(**headers: str) -> Asked:
    scope = {"server": ("10.0.0.5", 8081), "client": None, "scheme": "http", "method": "GET"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Asked("GET /workers", scope, named, ())


@pytest.fixture
def access(tmp_path: Path) -> Access:
    path = tmp_path / "tokens"
    rows = (("ann", ANN), ("bob", BOB))
    path.write_text(
        "".join(
            f'{{"name": "{name}", "token": "{token}", "roles": ["metrics"]}}\n'
            for name, token in rows
        )
    )
    path.chmod(0o600)
    return Access(str(path))


@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ({"authorization": f"Bearer {ANN}"}, "ann"),
        ({"x_api_key": BOB}, "bob"),
        ({"authorization": f"Bearer {ANN}", "x_api_key": ANN}, "ann"),
        ({"authorization": f"bearer  {ANN}", "x_api_key": ""}, "ann"),
    ],
)
def test_one_token_may_come_in_either_header(
    access: Access, headers: dict[str, str], caller: str
) -> None:
    assert HttpGuard(access).admit(asked(**headers)).name == caller


@pytest.mark.parametrize(
    "shown", [f"Bearer {ANN}", "Bearer nobody-0123456789", "Basic YTpi", BOB, ""]
)
def test_two_headers_with_different_tokens_are_refused(access: Access, shown: str) -> None:
    with pytest.raises(HttpError, match="different tokens") as caught:
        HttpGuard(access).admit(asked(authorization=shown, x_api_key=BOB))
    assert caught.value.status == 400 and access.refused == {"token": 1}


def test_where_nobody_is_asked_who_they_are_tokens_are_not_read() -> None:
    assert not HttpGuard(Access()).admit(asked(authorization="Bearer a", x_api_key="b")).name


LOCAL = {"host": "127.0.0.1", "port": 8000, "http_port": 8081, "admin": ("127.0.0.1", 8081)}
OPEN = {"host": "0.0.0.0", "port": 8000, "http_port": 8081, "admin": ("127.0.0.1", 8081)}


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("identified", [False, True])
def test_on_loopback_nothing_is_open(tls: bool, identified: bool) -> None:
    assert open_to_others(**LOCAL, tls=tls, identified=identified) == []  # type: ignore[arg-type]


def test_what_is_open_is_named() -> None:
    said = open_to_others(**OPEN, tls=False, identified=False)  # type: ignore[arg-type]
    assert [line.partition(":")[0].split()[0] for line in said] == ["grpc", "http", "requests"]
    assert "grpc 0.0.0.0:8000 is open" in said[0] and "--auth-tokens" in said[0]
    assert "http 0.0.0.0:8081 is open" in said[1]
    assert "--tls-cert" in said[2]
    with_tls = open_to_others(**OPEN, tls=True, identified=False)  # type: ignore[arg-type]
    assert with_tls == said[:2]
    with_tokens = open_to_others(**OPEN, tls=False, identified=True)  # type: ignore[arg-type]
    assert len(with_tokens) == 1 and "tokens travel readable" in with_tokens[0]
    assert open_to_others(**OPEN, tls=True, identified=True) == []  # type: ignore[arg-type]


def test_an_open_admin_listener_and_plain_workers_are_named() -> None:
    where = {**LOCAL, "admin": ("10.0.0.5", 9000)}
    said = open_to_others(
        **where,  # type: ignore[arg-type]
        tls=False,
        identified=False,
        plain_workers=["grpc://h:1", "h:2"],
    )
    assert "admin 10.0.0.5:9000 is open" in said[0]
    assert "admin calls travel readable to 10.0.0.5:9000" in said[1]
    assert said[2] == "workers at grpc://, not grpcs://, are reached without TLS: grpc://h:1, h:2"
