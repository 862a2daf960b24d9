"""Who a load client is to its target, and how it believes it: TLS and a token."""

from dataclasses import dataclass
from typing import Any

from ...process.settings import bad_setting
from ...transport.security import read_file, read_secret


@dataclass(frozen=True, kw_only=True)
class TargetAccess:
    """Paths of PEM files and of one with a token. ConfigError if they cannot be used.

    TLS is spoken where any of the first three is given, or `tls` says so; without `tls_ca` the
    target is believed if the system's authorities do.
    """

    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token_file: str | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = "tls_cert", "tls_key"
            if self.tls_cert is None:
                given, missing = missing, given
            raise bad_setting(given, f"needs {missing}")

    def channel(self, address: str, options: list[tuple[str, Any]]) -> Any:
        """A channel to HOST:PORT."""
        import grpc  # by what opens a channel alone: settings have a TargetAccess too

        aio: Any = grpc.aio  # its stubs do not know that serialisers are optional
        files = {
            name: None if path is None else read_file(path, name)
            for name, path in (
                ("tls_ca", self.tls_ca),
                ("tls_key", self.tls_key),
                ("tls_cert", self.tls_cert),
            )
        }
        if not self.tls and not any(files.values()):
            return aio.insecure_channel(address, options=options)
        credentials = grpc.ssl_channel_credentials(*files.values())
        return aio.secure_channel(address, credentials, options=options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        if self.token_file is None:
            return ()
        return (("authorization", f"Bearer {read_secret(self.token_file, 'token_file')}"),)
