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
)
from .grpc_guard import GrpcGuard
from .loopback import is_loopback
from .roles import FRONTEND_RULES, Role

if TYPE_CHECKING:
    from .http_guard import AdminAddress
    from .security import Security

# The HTTP server comes with them.
__getattr__ = lazy_names(
    __name__,
    {"AdminAddress": ".http_guard", "Security": ".security"},
)
