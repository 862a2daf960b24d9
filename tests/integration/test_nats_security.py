"""A NATS server with TLS or credentials: who gets in, and what is never sent in the clear."""

import asyncio
import base64
import binascii
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nkeys
import pytest
import structlog
from support.polling import closed_after, until
from support.security.certificates import Authority
from support.security.secured_nats import secured_nats

from dynamo_router.base.backoff import Backoff
from dynamo_router.base.errors import ConfigError
from dynamo_router.runtime.event_planes.event_plane import PlaneState
from dynamo_router.runtime.event_planes.nats_plane import NatsPlane
from dynamo_router.transport.security import NatsAuth, NatsAuthConfig

PASSWORD = "S3cret/pw"


class Setup:
    """Certificates and secret files of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ours = Authority(folder / "ours")
        self.others = Authority(folder / "others", "others")
        self.server = self.ours.issue("nats")
        self.client = self.ours.issue("router")
        self.stranger = self.others.issue("stranger")
        self.seed, self.public = new_user()

    def secret(self, text: str) -> str:
        path = self.folder / "secret"
        path.write_text(text + "\n")
        path.chmod(0o600)
        return str(path)

    def tls(self, **more: Any) -> dict[str, Any]:
        cert, key = self.server
        return {"tls": {"cert_file": cert, "key_file": key, **more}}


def new_user() -> tuple[str, str]:
    """(seed, public key) of a new nkey for a user."""
    raw = bytes((nkeys.PREFIX_BYTE_SEED | nkeys.PREFIX_BYTE_USER >> 5,))
    raw += bytes(((nkeys.PREFIX_BYTE_USER & 31) << 3,)) + secrets.token_bytes(32)
    raw += binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    seed = base64.b32encode(raw).rstrip(b"=")
    return seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode()


async def ends(url: str, auth: NatsAuthConfig) -> str:
    """ "connected", or why a plane does not get through."""
    with structlog.testing.capture_logs() as lines:
        plane = NatsPlane(url, auth=NatsAuth(auth), backoff=Backoff(0.01, 0.05))
        try:
            await until(
                lambda: (
                    plane.state is PlaneState.CONNECTED
                    or any("not reachable" in line["event"] for line in lines)
                )
            )
            if plane.state is PlaneState.CONNECTED:
                return "connected"
            return next(str(line["error"]) for line in lines if "not reachable" in line["event"])
        finally:
            await plane.close()
            assert PASSWORD not in str(lines)


Auth = Callable[[Setup], NatsAuthConfig]
Settings = Callable[[Setup], dict[str, Any]]


def plain(_: Setup) -> NatsAuthConfig:
    return NatsAuthConfig()


def users(_: Setup) -> dict[str, Any]:
    return {"authorization": {"user": "alice", "password": PASSWORD}}


def token(_: Setup) -> dict[str, Any]:
    return {"authorization": {"token": PASSWORD}}


def nkey(s: Setup) -> dict[str, Any]:
    return {"authorization": {"users": [{"nkey": s.public}]}}


def tls(s: Setup) -> dict[str, Any]:
    return s.tls()


def mutual(s: Setup) -> dict[str, Any]:
    return s.tls(ca_file=s.ours.ca, verify=True)


@pytest.mark.parametrize(
    ("settings", "url", "auth", "said"),
    [
        (
            users,
            "nats://alice@{}",
            lambda s: NatsAuthConfig(password_file=s.secret(PASSWORD)),
            None,
        ),
        (
            users,
            "nats://alice@{}",
            lambda s: NatsAuthConfig(password_file=s.secret("wrong")),
            "Authorization Violation",
        ),
        (users, "nats://{}", plain, "Authorization Violation"),
        (token, "nats://{}", lambda s: NatsAuthConfig(token_file=s.secret(PASSWORD)), None),
        (token, "nats://{}", lambda s: NatsAuthConfig(token_file=s.secret("no")), "Authorization"),
        (nkey, "nats://{}", lambda s: NatsAuthConfig(nkey_seed=s.secret(s.seed)), None),
        (
            nkey,
            "nats://{}",
            lambda s: NatsAuthConfig(nkey_seed=s.secret(new_user()[0])),
            "Authorization Violation",
        ),
        (tls, "tls://{}", lambda s: NatsAuthConfig(ca=s.ours.ca), None),
        (tls, "tls://{}", lambda s: NatsAuthConfig(ca=s.others.ca), "CERTIFICATE_VERIFY_FAILED"),
        (tls, "tls://{}", plain, "CERTIFICATE_VERIFY_FAILED"),
        (
            mutual,
            "tls://{}",
            lambda s: NatsAuthConfig(ca=s.ours.ca, cert=s.client[0], key=s.client[1]),
            None,
        ),
        (mutual, "tls://{}", lambda s: NatsAuthConfig(ca=s.ours.ca), ""),
        (
            mutual,
            "tls://{}",
            lambda s: NatsAuthConfig(ca=s.ours.ca, cert=s.stranger[0], key=s.stranger[1]),
            "",
        ),
        (users, "tls://alice@{}", lambda s: NatsAuthConfig(ca=s.ours.ca), "offers no TLS"),
    ],
)
async def test_who_gets_in(
    tmp_path: Path, settings: Settings, url: str, auth: Auth, said: str | None
) -> None:
    setup = Setup(tmp_path)
    async with secured_nats(tmp_path, settings(setup)) as server:
        told = await ends(url.format(f"127.0.0.1:{server.port}"), auth(setup))
        if said is None:
            assert told == "connected"
        else:
            assert told != "connected" and said in told


async def test_an_expired_certificate_is_not_believed(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    setup.server = setup.ours.issue("ended", days=-0.1)
    async with secured_nats(tmp_path, setup.tls()) as server:
        told = await ends(f"tls://127.0.0.1:{server.port}", NatsAuthConfig(ca=setup.ours.ca))
    assert "certificate has expired" in told


async def test_a_password_is_never_sent_in_the_clear_where_tls_was_asked_for() -> None:
    """Somebody in between says that the server has no TLS."""
    heard = bytearray()
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","max_payload":1,"auth_required":true}\r\n')
        heard.extend(await reader.read())
        writer.close()
        gone.set()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        told = await ends(f"tls://alice:S3cret@127.0.0.1:{port}", NatsAuthConfig())
        await asyncio.wait_for(gone.wait(), 60)
    assert "offers no TLS" in told and heard == b""


async def test_new_secrets_are_read_for_the_next_connection(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    path = setup.secret("wrong")
    auth = NatsAuth(NatsAuthConfig(password_file=path))
    async with secured_nats(tmp_path, users(setup)) as server:
        url = f"nats://alice@127.0.0.1:{server.port}"
        async with closed_after(NatsPlane(url, auth=auth, backoff=Backoff(0.01, 0.05))) as plane:
            setup.secret(PASSWORD)
            await until(lambda: plane.state is PlaneState.CONNECTED)


def test_tls_settings_without_a_tls_address_are_refused(tmp_path: Path) -> None:
    setup = Setup(tmp_path)
    auth = NatsAuth(NatsAuthConfig(ca=setup.ours.ca))
    with pytest.raises(ConfigError, match="nats_auth.ca: needs a tls:// address in nats"):
        auth.check_url("nats://127.0.0.1:4222")
