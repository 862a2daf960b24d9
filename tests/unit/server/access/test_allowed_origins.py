"""Which web pages may use which routes, and what a browser is answered."""

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.server.access.allowed_origins import AllowedOrigins
from dynamo_router.server.access.roles import RULES

CHAT = "POST /v1/chat/completions"
PAGE = "https://chat.example"
ASKS = {"origin": PAGE, "access-control-request-method": "POST"}


@pytest.mark.parametrize("origins, page, allowed", [
    ([PAGE], PAGE, True),
    ([PAGE], "HTTPS://chat.example", True),
    ([PAGE, "http://127.0.0.1:3000"], "http://127.0.0.1:3000", True),
    (["*"], "http://anything", True),
    (["*"], "null", True),
    ([PAGE], "null", False),
    ([PAGE], "http://chat.example", False),
    ([PAGE], "https://chat.example:8443", False),
    ([PAGE], "https://chat.example.evil", False),
    ([PAGE], None, False),
    ([], PAGE, False),
])  # fmt: skip
def test_a_page_is_allowed_by_its_whole_origin(
    origins: list[str], page: str | None, allowed: bool
) -> None:
    made = AllowedOrigins(origins)
    assert made.allow(CHAT, page) is allowed
    asked = {"origin": page} if page is not None else {}
    assert (made.preflight(CHAT, asked) is not None) is allowed
    shown = made.headers(CHAT, page).get("access-control-allow-origin")
    assert shown == (None if not allowed else "*" if origins == ["*"] else page)


def test_only_routes_by_which_clients_have_requests_answered() -> None:
    made = AllowedOrigins(["*"])
    allowed = {route for route in RULES if made.allow(route, PAGE)}
    assert {CHAT, "POST /v1/completions", "GET /v1/models"} <= allowed
    assert not {r for r in allowed if RULES[r].admin_listener or RULES[r].open}
    for route in ("GET /pools", "GET /metrics", "GET /workers", "POST /reload", "POST /nowhere"):
        assert route not in allowed
        assert made.headers(route, PAGE) == {} and made.preflight(route, ASKS) is None


@pytest.mark.parametrize("origins", [["*"], [PAGE]])
def test_no_answer_allows_credentials(origins: list[str]) -> None:
    made = AllowedOrigins(origins)
    for told in (made.headers(CHAT, PAGE), made.preflight(CHAT, ASKS) or {}):
        assert not any("credentials" in name for name in told)


@pytest.mark.parametrize("names, told", [
    ("authorization,content-type, x-stainless-os", "authorization,content-type, x-stainless-os"),
    ("", "authorization, content-type"),
    ("a\r\nb", "authorization, content-type"),
    ("a" * 5000, "authorization, content-type"),
])  # fmt: skip
def test_a_page_may_send_the_headers_that_it_asks_for(names: str, told: str) -> None:
    found = AllowedOrigins([PAGE]).preflight(
        CHAT, {**ASKS, "access-control-request-headers": names}
    )
    assert found is not None and found["access-control-allow-headers"] == told
    assert found["access-control-allow-methods"] == "POST" and found["vary"] == "Origin"


@pytest.mark.parametrize("origin", [
    "chat.example", "https://chat.example/", "https://chat.example/x", "null", "", "ftp://a",
    "https://*.example", "https://a b", "https://a:b", "https://u@a",
])  # fmt: skip
def test_what_is_no_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ConfigError) as error:
        AllowedOrigins([origin])
    assert error.value.key == "allowed_origins"
