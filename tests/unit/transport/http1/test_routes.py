"""Which route a request has, by its method and path."""

import pytest

from dynamo_router.transport.http1 import HttpCall, HttpError, RouteTable


async def answer(call: HttpCall) -> None: ...


TABLE = RouteTable(
    dict.fromkeys(
        (
            "GET /workers",
            "POST /workers",
            "POST /workers/{id}/drain",
            "PATCH /workers/{id}",
            "DELETE /workers/{id}",
            "GET /v1/models/{id}",
            "GET /a.b",
            "GET /",
        ),
        answer,
    )
)


@pytest.mark.parametrize(
    "method, raw_path, name, values",
    [
        ("GET", "/workers", "GET /workers", {}),
        ("HEAD", "/workers", "GET /workers", {}),
        ("POST", "/workers/7/drain", "POST /workers/{id}/drain", {"id": "7"}),
        ("POST", "/workers/h%3A1%2Fx/drain", "POST /workers/{id}/drain", {"id": "h:1/x"}),
        ("DELETE", "/workers/7", "DELETE /workers/{id}", {"id": "7"}),
        ("GET", "/v1/models/a/b%20c", "GET /v1/models/{id}", {"id": "a/b c"}),
        ("GET", "/v1/models/a%2Fb", "GET /v1/models/{id}", {"id": "a/b"}),
        ("GET", "/workers/", "GET /workers", {}),
        ("HEAD", "/workers//", "GET /workers", {}),
        ("GET", "/v1/models/a/b/", "GET /v1/models/{id}", {"id": "a/b"}),
        ("POST", "/workers/7/drain/", "POST /workers/{id}/drain", {"id": "7"}),
        ("GET", "/", "GET /", {}),
        ("GET", "//", "GET /", {}),
    ],
)
def test_a_route_is_named_by_its_pattern(
    method: str, raw_path: str, name: str, values: dict[str, str]
) -> None:
    route = TABLE.find(method, raw_path, raw_path)
    assert (route.name, route.values) == (name, values)


@pytest.mark.parametrize(
    "method, path, status, allowed",
    [
        ("GET", "/nowhere", 404, None),
        ("GET", "/axb", 404, None),
        ("GET", "/v1/models", 404, None),
        ("PUT", "/workers", 405, "GET,POST,HEAD"),
        ("PATCH", "/workers/7/drain", 405, "POST"),
        ("POST", "/workers/7", 405, "PATCH,DELETE"),
        ("get", "/workers", 405, "GET,POST,HEAD"),
        ("HEAD", "/workers/7/drain", 405, "POST"),
    ],
)
def test_what_has_no_route(method: str, path: str, status: int, allowed: str | None) -> None:
    with pytest.raises(HttpError) as caught:
        TABLE.find(method, path, path)
    assert caught.value.status == status and caught.value.headers.get("allow") == allowed
    assert status == 404 or str(caught.value).endswith(f"does not take {method}")
