"""Access: from what a caller shows, a bearer token or a certificate, to what it may do."""

from collections import Counter
from urllib.parse import quote

from ...transport.security import WatchedFiles, warn_if_shared
from .callers import ANONYMOUS, AccessError, Caller
from .roles import Rule
from .token_file import MAX_TOKEN, TokenTable, read_tokens

_SCHEME = "bearer"


class Access:
    """Decides about calls. Without a file of tokens, and where clients show no certificates,
    every caller is the anonymous one, who may do everything.

    ConfigError if the file is not valid; later a bad new one leaves the old. `refused` counts by
    reason.
    """

    def __init__(self, tokens: str | None = None, *, certificates: bool = False) -> None:
        """`tokens` is the file's path; `certificates`: every client shows one."""
        self.files: WatchedFiles[TokenTable] | None = None
        if tokens is not None:
            path = tokens
            warn_if_shared(path)
            self.files = WatchedFiles("file of tokens", [path], lambda: read_tokens(path))
        self.reads_certificates = certificates
        self.open = self.files is None and not certificates
        """whether callers need not show who they are"""
        self.refused: Counter[str] = Counter()

    def admit(self, rule: Rule, authorization: str | None, names: tuple[str, ...] = ()) -> Caller:
        """Who calls, if they may make a call with this rule; AccessError if not.

        `authorization` is the header of that name, `names` are those of the verified certificate.
        """
        if rule.open or self.open:
            return ANONYMOUS
        try:
            caller = self._identify(authorization, names)
            if not caller.roles & rule.roles:
                wanted = " or ".join(sorted(rule.roles))
                raise AccessError(
                    f"{caller.name} may not do this: it needs the role {wanted}",
                    reason="role",
                    authenticated=True,
                )
        except AccessError as error:
            self.refused[error.reason] += 1
            raise
        return caller

    def _identify(self, authorization: str | None, names: tuple[str, ...]) -> Caller:
        if self.files is None:
            if not names:
                raise AccessError(
                    "the client certificate has neither a common name nor a DNS name",
                    reason="certificate",
                )
            return Caller(quote(names[0], safe=""))
        table = self.files.value
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            token = token.strip()
            if scheme.lower() != _SCHEME or not token or len(token) > MAX_TOKEN:
                raise AccessError(
                    "the authorization header is not of the form: Bearer TOKEN", reason="token"
                )
            caller = table.by_token(token)
            if caller is None:
                raise AccessError("the bearer token is not known", reason="token")
            return caller
        caller = table.by_certificate(names)
        if caller is None:
            raise AccessError("a bearer token is needed", reason="no_token")
        return caller
