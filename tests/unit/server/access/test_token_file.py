"""The file of callers: what it may hold, and what is said of one that is no good."""

import hashlib
import json
from pathlib import Path

import pytest

from dynamo_router.base.errors import ConfigError
from dynamo_router.server.access.roles import Role
from dynamo_router.server.access.token_file import TokenTable, read_tokens

TOKEN = "frontend-0123456789"
OTHER = "selector-0123456789"
DIGEST = hashlib.sha256(OTHER.encode()).hexdigest()

TOML = f"""
# who may call
[[caller]]
name = "frontend"
token = "{TOKEN}"
roles = ["client", "selector"]

[[caller]]
name = "picker"
token_sha256 = "{DIGEST.upper()}"
roles = ["selector"]

[[caller]]
name = "ops"
certificate = "ops.example"
roles = ["admin"]
"""
JSON_LINES = "\n".join(
    json.dumps(entry)
    for entry in (
        {"name": "frontend", "token": TOKEN, "roles": ["client", "selector"]},
        {"name": "picker", "token_sha256": DIGEST, "roles": ["selector"]},
        {"name": "ops", "certificate": "ops.example", "roles": ["admin"]},
    )
)


def read(folder: Path, text: str | bytes) -> TokenTable:
    path = folder / "tokens"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_tokens(str(path))


@pytest.mark.parametrize("text", [TOML, JSON_LINES, f"\n{JSON_LINES}\n\n"])
def test_callers_are_known_by_what_they_show(tmp_path: Path, text: str) -> None:
    table = read(tmp_path, text)
    assert len(table) == 3
    frontend = table.by_token(TOKEN)
    assert frontend is not None
    assert (frontend.name, frontend.roles) == ("frontend", {Role.CLIENT, Role.SELECTOR})
    picker = table.by_token(OTHER)
    assert picker is not None and picker.name == "picker"
    ops = table.by_certificate(("CN", "ops.example"))
    assert ops is not None and ops.roles == {Role.ADMIN}


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "x", DIGEST, "\udcff"])
def test_what_is_not_there_is_nobody(tmp_path: Path, token: str) -> None:
    table = read(tmp_path, TOML)
    assert table.by_token(token) is None
    assert table.by_certificate((token,)) is None


def test_one_caller_may_have_two_tokens_while_one_is_replaced(tmp_path: Path) -> None:
    entry = '[[caller]]\nname = "a"\nroles = ["client"]\n'
    table = read(tmp_path, f'{entry}token = "{TOKEN}"\n{entry}token = "{OTHER}"\n')
    found = (table.by_token(TOKEN), table.by_token(OTHER))
    assert {caller.name for caller in found if caller is not None} == {"a"}


def caller(**fields: object) -> str:
    full = {"name": "a", "token": TOKEN, "roles": ["client"], **fields}
    rows = (f"{key} = {json.dumps(value)}" for key, value in full.items() if value is not None)
    return "\n".join(("[[caller]]", *rows, ""))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no caller"),
        ("# nobody\n", "names no caller"),
        (b"\xff", "is not UTF-8"),
        ('[[caller]]\nname = "a\n', "line 2: it is not TOML"),
        ("[[caller]]\n[[caller]", "line 2: it is not TOML"),
        ('user = "a"\n', "line 1: unknown key 'user': only"),
        (caller() + "\n[users]\n", "line 6: unknown key 'users': only"),
        ('caller = "a"\n', "line 1: caller must be written"),
        (caller(name=None), "line 1: name must be 1 to 64 letters"),
        (caller(name="a/b"), "line 1: name must be"),
        (caller(name=""), "line 1: name must be"),
        (caller(name="x" * 65), "line 1: name must be"),
        (caller(name=5), "line 1: name must be"),
        (caller(roles=None), "line 1: roles must be a list of client, selector, admin, metrics"),
        (caller(roles=[]), "line 1: roles must be a list"),
        (caller(roles="client"), "line 1: roles must be a list"),
        (caller(roles=["root"]), "line 1: 'root' is no role: they are client,"),
        (caller(token=None), "line 1: one of token, token_sha256, certificate must be there"),
        (caller(certificate="c"), "line 1: one of token, token_sha256, certificate"),
        (caller(token=""), "line 1: token must be a text that is not empty"),
        (caller(token=7), "line 1: token must be a text"),
        (caller(token="short"), "line 1: token is shorter than 16 characters"),
        (caller(token="white space in the middle"), "line 1: token must be at most 4096 letters"),
        (caller(token="x" * 5000), "line 1: token must be at most 4096 letters"),
        (caller(token=None, token_sha256="abc"), "line 1: token_sha256 must be 64 hexadecimal"),
        (caller(role=["client"]), r"line 1: unknown key 'role'; did you mean roles\?"),
        (caller() + caller(name="b"), "line 5: the token is there twice: give each caller its own"),
        (
            caller(token=None, certificate="c") * 2,
            "line 5: certificate 'c' is there twice: give each caller its own",
        ),
        ('{"name": "a"}\n{"name"', "line 2: it is not JSON"),
        ('{"name"\n', "line 1: it is not JSON"),
        (f"{JSON_LINES}\n[1]", "line 4: it is no JSON object"),
    ],
)
def test_a_file_that_is_no_good_is_told_by_its_line(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith("auth_tokens: ") and caught.value.key == "auth_tokens"
    assert TOKEN not in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="auth_tokens: cannot read .*nowhere: No such file"):
        read_tokens(str(tmp_path / "nowhere"))
