"""Certificates and keys: each way in which they can be no good has its message."""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.security.certificates import Authority

from dynamo_router.base.errors import ConfigError
from dynamo_router.transport.security import (
    ClientTls,
    NatsAuth,
    NatsAuthConfig,
    ServerTls,
    ServerTlsConfig,
    WorkerTlsConfig,
    client_context,
    read_secret,
    shared_mode,
)


@dataclass
class Files:
    """A folder with an authority and a pair of each kind."""

    folder: Path

    def __post_init__(self) -> None:
        self.authority = Authority(self.folder)
        self.cert, self.key = self.authority.issue("good")
        self.other_cert, self.other_key = self.authority.issue("other")
        self.old_cert, self.old_key = self.authority.issue("old", days=-0.1)
        self.locked_cert, self.locked_key = self.authority.issue("locked", passphrase=b"sesame")
        self.junk = str(self.folder / "junk")
        Path(self.junk).write_bytes(b"\xff junk")
        self.broken = str(self.folder / "broken")
        Path(self.broken).write_text(
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
        )

    def path(self, name: str) -> str:
        return str(getattr(self, name, self.folder / name))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(
    ("cert", "key", "text"),
    [
        ("missing", "key", "tls.cert: cannot read .*missing: No such file"),
        ("cert", "missing", "tls.key: cannot read .*missing: No such file"),
        ("junk", "key", "tls.cert: .*junk holds no certificate in PEM"),
        ("broken", "key", "tls.key: .*broken and .*good.key cannot be used"),
        ("cert", "junk", "tls.key: .*junk holds no private key in PEM"),
        ("cert", "other_key", "tls.key: .*other.key does not belong to the certificate in .*good"),
        ("locked_cert", "locked_key", "tls.key: .*locked.key is encrypted"),
        ("old_cert", "old_key", "tls.cert: .*old.crt is not valid: certificate has expired"),
    ],
)
def test_a_bad_pair_is_told(files: Files, cert: str, key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ServerTls(ServerTlsConfig(cert=files.path(cert), key=files.path(key)))


@pytest.mark.parametrize("bad", ["junk", "broken", "key"])
def test_bad_authorities_are_told(files: Files, bad: str) -> None:
    path = files.path(bad)
    with pytest.raises(ConfigError, match="tls.client_ca: .* holds no certificate authority"):
        ServerTls(ServerTlsConfig(cert=files.cert, key=files.key, client_ca=path))
    with pytest.raises(ConfigError, match="worker_tls.ca: .* holds no certificate authority"):
        ClientTls(WorkerTlsConfig(ca=path))


def test_it_is_known_when_a_certificate_ends(files: Files) -> None:
    tls = ServerTls(ServerTlsConfig(cert=files.cert, key=files.key))
    assert 0.9 < (tls.not_after - time.time()) / 86400 <= 1.0


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (lambda: ServerTlsConfig(cert="c"), "tls.cert: needs tls.key"),
        (lambda: ServerTlsConfig(key="k"), "tls.key: needs tls.cert"),
        (lambda: ServerTlsConfig(client_ca="a"), "tls.client_ca: needs tls.cert"),
        (lambda: WorkerTlsConfig(cert="c"), "worker_tls.cert: needs worker_tls.key"),
        (lambda: NatsAuthConfig(key="k"), "nats_auth.key: needs nats_auth.cert"),
        (
            lambda: NatsAuthConfig(creds="c", token_file="t"),
            "nats_auth.token_file: cannot be had beside creds",
        ),
        (
            lambda: NatsAuthConfig(token_file="t").check_has_server(None),
            "nats_auth.token_file: needs nats, the server's address",
        ),
    ],
)
def test_half_a_setting_is_told(config: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config()  # type: ignore[operator]


def _name_shown(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """The common name that a server shows in a handshake held in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(4):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
    shown = ours.getpeercert()
    assert shown is not None
    return str(shown["subject"][0][0][1])  # type: ignore[index]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "context",
    [
        lambda ca: client_context(ca, "tls_ca"),
        lambda ca: ClientTls(WorkerTlsConfig(ca=ca)).ssl_context,
        lambda ca: ClientTls(WorkerTlsConfig(ca=ca)).http1_context,
        lambda ca: NatsAuth(NatsAuthConfig(ca=ca)).options()["tls"],
    ],
    ids=["commands", "grpc", "http", "nats"],
)
def test_each_python_trusts_certificates_without_key_identifiers(
    tmp_path: Path, context: Callable[[str], ssl.SSLContext], strict: bool
) -> None:
    authority = Authority(tmp_path, strict=strict)
    cert, key = authority.issue("server")
    server = ServerTls(ServerTlsConfig(cert=cert, key=key)).ssl_context()
    assert _name_shown(server, context(authority.ca)) == "server"
    stranger = Authority(tmp_path / "other", strict=strict)
    with pytest.raises(ssl.SSLCertVerificationError):
        _name_shown(server, context(stranger.ca))


def test_a_new_certificate_is_shown_to_who_comes_next_and_a_bad_one_is_not(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("first", file="pair")
    tls = ServerTls(ServerTlsConfig(cert=cert, key=key))
    context = tls.ssl_context()
    client = ssl.create_default_context(cafile=authority.ca)
    assert _name_shown(context, client) == "first"
    authority.issue("second", file="pair")
    assert tls.files.poll() and _name_shown(context, client) == "second"
    authority.issue("ended", days=-0.1, file="pair")
    assert not tls.files.poll() and _name_shown(context, client) == "second"
    assert tls.files.error is not None and "has expired" in tls.files.error
    authority.issue("third", file="pair")
    assert tls.files.poll() and _name_shown(context, client) == "third"


def test_authorities_that_were_taken_away_are_not_believed_any_more(tmp_path: Path) -> None:
    ours = Authority(tmp_path / "ours")
    others = Authority(tmp_path / "others", "others")
    cert, key = ours.issue("server")
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(Path(others.ca).read_text())
    tls = ServerTls(ServerTlsConfig(cert=cert, key=key, client_ca=str(trusted)))
    client = ssl.create_default_context(cafile=ours.ca)
    client.load_cert_chain(*others.issue("alice"))

    def is_let_in() -> bool:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        theirs = tls.ssl_context().wrap_bio(to_server, to_client, server_side=True)
        mine = client.wrap_bio(to_client, to_server, server_hostname="localhost")
        try:
            for _ in range(4):
                for end in (mine, theirs):
                    try:
                        end.do_handshake()
                    except ssl.SSLWantReadError:
                        pass
        except ssl.SSLError:
            return False
        return theirs.getpeercert() is not None

    assert is_let_in()
    trusted.write_text(Path(ours.ca).read_text() + "\n")
    assert tls.files.poll() and not is_let_in()


# Secrets in files


def test_a_secret_file_that_others_may_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("hush\n")
    path.chmod(0o644)
    assert shared_mode(str(path)) == 0o644
    path.chmod(0o600)
    assert shared_mode(str(path)) is None
    assert read_secret(str(path), "k") == "hush"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "k: .* must hold one line"),
        (b"a\nb\n", "k: .* must hold one line"),
        (b"\xff", "k: .* is not UTF-8"),
        (b"x" * ((1 << 20) + 1), "k: .* is larger than"),
    ],
)
def test_what_holds_no_secret_is_told(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=text):
        read_secret(str(path), "k")


@pytest.mark.parametrize(
    ("way", "data", "text"),
    [
        ("creds", "junk", "nats_auth.creds: .* holds no credentials"),
        ("nkey_seed", "SUSHORT", "nats_auth.nkey_seed: .* holds no user seed"),
        ("nkey_seed", "SA" + "A" * 56, "nats_auth.nkey_seed: .* holds no user seed"),
        ("token_file", "", "nats_auth.token_file: .* must hold one line"),
        ("password_file", "a\nb", "nats_auth.password_file: .* must hold one line"),
    ],
)
def test_what_nats_could_not_use_is_told(tmp_path: Path, way: str, data: str, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(data)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=text):
        NatsAuth(NatsAuthConfig(**{way: str(path)}))


@pytest.mark.parametrize("url", ["nats://h", "h:4222", "tls://h1,nats://h2"])
def test_tls_to_nats_is_never_left_out_silently(files: Files, url: str) -> None:
    auth = NatsAuth(NatsAuthConfig(ca=files.authority.ca))
    with pytest.raises(ConfigError, match="nats_auth.ca: needs a tls:// address"):
        auth.check_url(url)
    auth.check_url("tls://h1, tls://h2")
