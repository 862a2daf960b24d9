"""The load client against a router that asks for TLS, a certificate and a token."""

from pathlib import Path

import numpy as np
import pytest
from support.fake_engine import FakeEngine
from support.security.certificates import Authority
from support.serving import serving

from dynamo_router.base.errors import ConfigError
from dynamo_router.bench.load import LoadClient, TargetAccess, encode_generate
from dynamo_router.transport.security import ServerTlsConfig

TOKEN = "load-0123456789abcdef"


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def locks(ours: Authority, folder: Path) -> dict[str, object]:
    """Settings of a router that lets in nobody without a certificate and a token."""
    cert, key = ours.issue("server")
    callers = folder / "callers.toml"
    callers.write_text(f'[[caller]]\nname = "load"\ntoken = "{TOKEN}"\nroles = ["client"]\n')
    callers.chmod(0o600)
    tls = ServerTlsConfig(cert=cert, key=key, client_ca=ours.ca)
    return {"tls": tls, "auth_tokens": str(callers)}


async def test_it_gets_in_with_all_it_needs_and_is_told_what_it_lacks(
    ours: Authority, tmp_path: Path
) -> None:
    cert, key = ours.issue("load")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    files = {"tls_ca": ours.ca, "tls_cert": cert, "tls_key": key}
    async with serving(FakeEngine(), **locks(ours, tmp_path)) as ports:
        target = ports.server.grpc_address
        async with LoadClient(target, TargetAccess(**files, token_file=str(token))) as client:
            assert (await client.probe(15.0)).model_id == "fake"
            body = encode_generate("r", np.arange(1, 30, dtype=np.uint32), 2)
            outcome = await client.generate(body, 2, 15.0)
            assert (outcome.code, outcome.output_tokens) == ("OK", 2)
        async with LoadClient(target, TargetAccess(**files)) as client:
            with pytest.raises(ConfigError, match="UNAUTHENTICATED"):
                await client.probe(15.0)
        async with LoadClient(target) as client:  # no TLS
            with pytest.raises(ConfigError, match="target"):
                await client.probe(0.5)


def test_half_of_a_pair_and_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs tls_key"):
        TargetAccess(tls_cert="us.pem")
    with pytest.raises(ConfigError, match="needs tls_cert"):
        TargetAccess(tls_key="us.key")
    with pytest.raises(ConfigError, match="tls_ca"):
        TargetAccess(tls_ca=str(tmp_path / "none.pem")).channel("127.0.0.1:1", [])
    with pytest.raises(ConfigError, match="token_file"):
        TargetAccess(token_file=str(tmp_path / "none")).metadata()
