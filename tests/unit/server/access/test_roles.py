"""Who may what: one table, whole, and closed where it says nothing."""

from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from dynamo_router.router.proto import router_pb2
from dynamo_router.server.access.access import Access
from dynamo_router.server.access.callers import ANONYMOUS, AccessError
from dynamo_router.server.access.roles import RULES, Role, Rule, rule_of
from dynamo_router.server.call_limits import PROCESSOR
from dynamo_router.workers.trtllm_proto import pb

TOKENS = {role: f"{role}-token-0123456789" for role in Role}


def file_of_tokens(folder: Path) -> str:
    path = folder / "tokens.toml"
    path.write_text(
        "".join(
            f'[[caller]]\nname = "{role}"\ntoken = "{token}"\nroles = ["{role}"]\n'
            for role, token in TOKENS.items()
        )
        + '[[caller]]\nname = "robot"\ncertificate = "robot.example"\nroles = ["client"]\n'
    )
    path.chmod(0o600)
    return str(path)


def test_every_method_that_is_served_is_in_the_table() -> None:
    files = (pb, router_pb2, health_pb2, reflection_pb2)
    methods = {
        f"/{service.full_name}/{method.name}"
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    methods.add(f"/{PROCESSOR}/Process")  # of Envoy's own files, which we have no stubs of
    for method in list(methods):  # the two versions of reflection differ in their name alone
        methods.add(method.replace(".v1alpha.", ".v1."))
    assert methods == {call for call in RULES if call.startswith("/")}


def test_what_is_not_in_the_table_is_for_admins_on_their_listener() -> None:
    for call in ("/dynamo_router.v1.RouterService/New", "DELETE /workers/{id}", "GET /dump"):
        assert rule_of(call) == Rule(frozenset((Role.ADMIN,)), admin_listener=True)


QUESTIONS = ("POST /overlaps", "POST /dashboard/what-if")
"""They have a prompt in their body, and change nothing."""


def test_whatever_changes_something_over_http_is_on_the_admin_listener() -> None:
    for call, rule in RULES.items():
        asks = Role.CLIENT in rule.roles or call in QUESTIONS
        if not call.startswith(("/", "GET ")) and not asks:
            assert rule.admin_listener, call


@pytest.mark.parametrize("role", Role)
def test_a_token_is_good_for_the_calls_of_its_roles(tmp_path: Path, role: Role) -> None:
    access = Access(file_of_tokens(tmp_path))
    refused = 0
    for call, rule in RULES.items():
        if rule.open:
            assert access.admit(rule, f"Bearer {TOKENS[role]}") is ANONYMOUS
        elif role in rule.roles:
            assert access.admit(rule, f"bearer  {TOKENS[role]}").name == role
        else:
            refused += 1
            with pytest.raises(AccessError, match=f"{role} may not do this: it needs") as caught:
                access.admit(rule, f"Bearer {TOKENS[role]}")
            assert caught.value.authenticated, call
    assert refused and access.refused == {"role": refused}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (None, "a bearer token is needed"),
        ("", "not of the form: Bearer TOKEN"),
        ("Bearer", "not of the form"),
        ("Bearer ", "not of the form"),
        (f"Basic {TOKENS[Role.CLIENT]}", "not of the form"),
        (TOKENS[Role.CLIENT], "not of the form"),
        ("Bearer " + "x" * 5000, "not of the form"),
        ("Bearer nobody-0123456789", "the bearer token is not known"),
        (f"Bearer {TOKENS[Role.CLIENT]} x", "the bearer token is not known"),
    ],
)
def test_who_shows_no_good_token_is_nobody(tmp_path: Path, header: str | None, said: str) -> None:
    access = Access(file_of_tokens(tmp_path))
    with pytest.raises(AccessError, match=said) as caught:
        access.admit(RULES["/trtllm.TrtllmService/Generate"], header)
    assert not caught.value.authenticated
    assert access.admit(RULES["GET /health"], header) is ANONYMOUS


def test_a_certificate_may_stand_for_a_token(tmp_path: Path) -> None:
    generate, metrics = RULES["/trtllm.TrtllmService/Generate"], RULES["GET /metrics"]
    access = Access(file_of_tokens(tmp_path), certificates=True)
    names = ("CN", "robot.example")
    assert access.admit(generate, None, names).name == "robot"
    with pytest.raises(AccessError, match="robot may not do this"):
        access.admit(metrics, None, names)
    assert access.admit(metrics, f"Bearer {TOKENS[Role.METRICS]}", names).name == "metrics"
    with pytest.raises(AccessError, match="a bearer token is needed"):
        access.admit(generate, None, ("stranger",))


def test_without_tokens_a_certificate_alone_names_its_caller() -> None:
    access = Access(certificates=True)
    assert not access.open
    caller = access.admit(RULES["GET /metrics"], None, ("team a/b", "x"))
    assert (caller.name, caller.roles) == ("team%20a%2Fb", set(Role))
    with pytest.raises(
        AccessError, match="the client certificate has neither a common name nor a DNS name"
    ):
        access.admit(RULES["GET /metrics"], None, ())


def test_without_tokens_and_certificates_everybody_may_everything() -> None:
    access = Access()
    assert access.open
    for rule in RULES.values():
        assert access.admit(rule, "Bearer whatever") is ANONYMOUS


def test_a_token_is_good_until_the_file_says_otherwise(tmp_path: Path) -> None:
    path = Path(file_of_tokens(tmp_path))
    access, rule = Access(str(path)), RULES["GET /metrics"]
    assert access.files is not None
    header = f"Bearer {TOKENS[Role.METRICS]}"
    path.write_text("broken = [")
    assert not access.files.poll() and access.admit(rule, header).name == "metrics"
    path.write_text('[[caller]]\nname = "new"\ntoken = "new-0123456789abc"\nroles = ["metrics"]\n')
    assert access.files.poll()
    with pytest.raises(AccessError, match="is not known"):
        access.admit(rule, header)
    assert access.admit(rule, "Bearer new-0123456789abc").name == "new"
