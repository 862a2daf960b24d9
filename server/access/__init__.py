"""Access: who calls, what each may do, and whose request an id means."""

from typing import TYPE_CHECKING

from ...base.account import current_account, set_account
from ...base.lazy_names import lazy_names
from .access import Access
from .callers import (
    ANONYMOUS,
    REASONS,
    AccessError,
    Caller,
    check_id,
    current_caller,
    generation_id,
    own_id,
    selection_id,
    set_caller,
)
from .exposure import open_to_others
from .grpc_guard import GrpcGuard
from .loopback import is_loopback
from .roles import FRONTEND_RULES, RULES, Role, Rule, rule_of

if TYPE_CHECKING:
    from .http_guard import AdminAddress, HttpGuard
    from .security import Security

__all__ = [
    "ANONYMOUS",
    "FRONTEND_RULES",
    "REASONS",
    "RULES",
    "Access",
    "AccessError",
    "AdminAddress",
    "Caller",
    "GrpcGuard",
    "HttpGuard",
    "Role",
    "Rule",
    "Security",
    "check_id",
    "current_account",
    "current_caller",
    "generation_id",
    "is_loopback",
    "open_to_others",
    "own_id",
    "rule_of",
    "selection_id",
    "set_account",
    "set_caller",
]

# The HTTP server comes with them.
__getattr__ = lazy_names(
    __name__,
    {"AdminAddress": ".http_guard", "HttpGuard": ".http_guard", "Security": ".security"},
)
