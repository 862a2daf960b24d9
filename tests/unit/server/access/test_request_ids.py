"""Ids of different callers, and of different kinds of requests, never meet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_router.base.errors import InvalidRequestError
from dynamo_router.server.access.callers import (
    ANONYMOUS,
    Caller,
    check_id,
    generation_id,
    own_id,
    selection_id,
)
from dynamo_router.server.dispatch.generate_request import restore_id, with_request_id
from dynamo_router.workers.trtllm_proto import pb

IDS = st.text(max_size=8)
NAMES = st.sampled_from(["a", "b", "a.b", "select"])
CALLERS = st.builds(Caller, NAMES)


@given(CALLERS, IDS, CALLERS, IDS)
def test_callers_have_name_spaces_of_their_own(a: Caller, x: str, b: Caller, y: str) -> None:
    for kind in (generation_id, selection_id):
        assert (kind(a, x) == kind(b, y)) == ((a, x) == (b, y))


@given(st.one_of(CALLERS, st.just(ANONYMOUS)), IDS, IDS)
def test_a_selection_is_never_a_generate_request(caller: Caller, x: str, y: str) -> None:
    for taken in (x, selection_id(caller, y), selection_id(ANONYMOUS, y)):
        try:
            check_id(taken)
        except InvalidRequestError:
            continue
        assert generation_id(caller, taken) != selection_id(caller, y)


@given(st.one_of(CALLERS, st.just(ANONYMOUS)), IDS)
def test_a_caller_sees_its_own_ids(caller: Caller, x: str) -> None:
    assert own_id(generation_id(caller, x), caller) == x


def test_without_names_ids_go_on_as_they_are() -> None:
    assert generation_id(ANONYMOUS, "r1") == "r1"


@pytest.mark.parametrize("request_id", ["\x1fselect//x", "\x00", "\n"])
def test_ids_that_could_be_ours_are_refused(request_id: str) -> None:
    with pytest.raises(InvalidRequestError, match="begins with a control character"):
        check_id(request_id)


@given(st.text(max_size=300), st.text(max_size=300), st.booleans())
async def test_answers_carry_the_callers_id(theirs: str, ours: str, in_order: bool) -> None:
    answer = pb.GenerateResponse(request_id=theirs)
    answer.chunk.token_ids.extend([1, 2, 3])
    message = answer.SerializeToString()
    if not in_order:  # as another implementation may write it
        answer.request_id = ""
        message = with_request_id(answer.SerializeToString(), theirs)
    got = restore_id(theirs, ours)(message)
    answer.request_id = ours
    assert pb.GenerateResponse.FromString(got) == answer
