"""Which call needs which role: one table for gRPC and HTTP.

A call that is not in the table needs the role admin, and over HTTP the admin listener: what is
forgotten here stays closed.
"""

from enum import StrEnum
from typing import NamedTuple


class Role(StrEnum):
    """What a caller may do; it may have several."""

    CLIENT = "client"
    """have requests answered by the fleet"""
    SELECTOR = "selector"
    """choose workers, and book its own requests on them"""
    ADMIN = "admin"
    """see everything, change how the router works"""
    METRICS = "metrics"
    """read metrics and the state of workers"""


ALL_ROLES = frozenset(Role)


class Rule(NamedTuple):
    """Who may make a call: every caller, or those with one of the roles."""

    roles: frozenset[Role]
    open: bool = False
    """callers need not show who they are"""
    admin_listener: bool = False
    """over HTTP, only where admin routes are served; over gRPC, without tokens, only on loopback"""


def _any_of(*roles: Role) -> Rule:
    return Rule(frozenset(roles))


_CLIENT, _SELECTOR = Role.CLIENT, Role.SELECTOR
_ADMIN, _METRICS = Role.ADMIN, Role.METRICS
_OPEN = Rule(frozenset(), open=True)
CLOSED = Rule(frozenset((_ADMIN,)), admin_listener=True)

_TRTLLM, _ROUTER = "/trtllm.TrtllmService", "/dynamo_router.v1.RouterService"

FRONTEND_RULES = {
    "POST /v1/chat/completions": _any_of(_CLIENT),
    "POST /v1/completions": _any_of(_CLIENT),
    "POST /v1/responses": _any_of(_CLIENT),
    "POST /v1/messages": _any_of(_CLIENT),
    "POST /v1/messages/count_tokens": _any_of(_CLIENT),
    "POST /v1/embeddings": _any_of(_CLIENT),
    "POST /v1/rerank": _any_of(_CLIENT),
    "POST /v2/rerank": _any_of(_CLIENT),
    "POST /classify": _any_of(_CLIENT),
    "POST /pooling": _any_of(_CLIENT),
    "POST /rerank": _any_of(_CLIENT),
    "POST /v1/score": _any_of(_CLIENT),
    "POST /score": _any_of(_CLIENT),
    "GET /v1/models": Rule(ALL_ROLES),
    "GET /v1/models/{id}": Rule(ALL_ROLES),
    "POST /tokenize": _any_of(_CLIENT),
    "POST /detokenize": _any_of(_CLIENT),
    "GET /pools": _any_of(_SELECTOR, _ADMIN, _METRICS),
}
"""Of the frontend's own listener, which has health and version, too, and for several models
the dashboard."""

RULES = {
    **FRONTEND_RULES,
    "/envoy.service.ext_proc.v3.ExternalProcessor/Process": _any_of(_CLIENT),
    f"{_TRTLLM}/Generate": _any_of(_CLIENT),
    f"{_TRTLLM}/Abort": _any_of(_CLIENT),
    f"{_TRTLLM}/Embed": _any_of(_CLIENT),
    f"{_TRTLLM}/GetTokenizer": _any_of(_CLIENT),
    f"{_TRTLLM}/SubscribeKvEvents": _any_of(_CLIENT),
    f"{_TRTLLM}/GetModelInfo": Rule(ALL_ROLES),
    f"{_TRTLLM}/GetServerInfo": Rule(ALL_ROLES),
    f"{_TRTLLM}/HealthCheck": _OPEN,
    f"{_ROUTER}/SelectWorker": _any_of(_SELECTOR),
    f"{_ROUTER}/MarkPrefillComplete": _any_of(_SELECTOR),
    f"{_ROUTER}/Free": _any_of(_SELECTOR),
    f"{_ROUTER}/GetOverlapScores": _any_of(_SELECTOR, _ADMIN),
    f"{_ROUTER}/GetPotentialLoads": _any_of(_SELECTOR, _ADMIN),
    f"{_ROUTER}/Explain": _any_of(_SELECTOR, _ADMIN),
    f"{_ROUTER}/ListWorkers": _any_of(_SELECTOR, _ADMIN, _METRICS),
    f"{_ROUTER}/AddWorker": CLOSED,
    f"{_ROUTER}/DrainWorker": CLOSED,
    f"{_ROUTER}/RemoveWorker": CLOSED,
    f"{_ROUTER}/SetWorkerWeight": CLOSED,
    "/grpc.health.v1.Health/Check": _OPEN,
    "/grpc.health.v1.Health/Watch": _OPEN,
    "/grpc.health.v1.Health/List": _OPEN,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Rule(ALL_ROLES),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Rule(ALL_ROLES),
    "GET /": _OPEN,
    "GET /live": _OPEN,
    "GET /ping": _OPEN,
    "GET /version": Rule(ALL_ROLES),
    "GET /health": _OPEN,
    "GET /metrics": _any_of(_METRICS, _ADMIN),
    "GET /record": _any_of(_METRICS, _ADMIN),
    "GET /workers": _any_of(_SELECTOR, _ADMIN, _METRICS),
    "POST /overlaps": _any_of(_SELECTOR, _ADMIN),
    "GET /dashboard": _OPEN,
    "GET /dashboard/page/{file}": _OPEN,
    "GET /dashboard/state": _any_of(_SELECTOR, _ADMIN, _METRICS),
    "GET /dashboard/overview": _any_of(_SELECTOR, _ADMIN, _METRICS),
    "GET /dashboard/plan": _any_of(_SELECTOR, _ADMIN, _METRICS),
    "GET /dashboard/caches": _any_of(_SELECTOR, _ADMIN),
    "GET /dashboard/receipt": _any_of(_SELECTOR, _ADMIN),
    "POST /dashboard/what-if": _any_of(_SELECTOR, _ADMIN),
    "GET /busy_threshold": _any_of(_METRICS, _ADMIN),
    "POST /busy_threshold": CLOSED,
    "POST /clear_kv_blocks": CLOSED,
    "POST /reload": CLOSED,
    "POST /workers": CLOSED,
    "POST /workers/{id}/drain": CLOSED,
    "PATCH /workers/{id}": CLOSED,
    "DELETE /workers/{id}": CLOSED,
}


def rule_of(call: str) -> Rule:
    """The rule of a gRPC method ("/package.Service/Method") or a route ("GET /path")."""
    return RULES.get(call, CLOSED)
