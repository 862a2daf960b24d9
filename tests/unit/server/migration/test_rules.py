"""Which streams go on at another worker, and after which failures."""

from typing import Any

import pytest
from support.fake_engine import prompt

from dynamo_router.base.errors import StatusCode
from dynamo_router.server.migration import failure_moves, why_fixed
from dynamo_router.workers.failures import Blame, Origin, Verdict, judge
from dynamo_router.workers.trtllm_proto import pb


def verdict(origin: Origin, code: StatusCode = StatusCode.UNAVAILABLE) -> Verdict:
    return judge(origin, code, started=True)


@pytest.mark.parametrize(
    ("failure", "moves"),
    [
        (verdict(Origin.TRANSPORT), True),
        (verdict(Origin.CONNECT), True),
        (verdict(Origin.SILENCE), True),
        (verdict(Origin.WORKER_DOWN), True),
        (verdict(Origin.ENGINE, StatusCode.UNAVAILABLE), True),
        (verdict(Origin.ENGINE, StatusCode.CANCELLED), True),
        (verdict(Origin.ENGINE, StatusCode.RESOURCE_EXHAUSTED), True),
        (verdict(Origin.ENGINE, StatusCode.INTERNAL), True),
        (verdict(Origin.ENGINE, StatusCode.INVALID_ARGUMENT), False),
        (verdict(Origin.ANSWER_SIZE), False),
        (verdict(Origin.DEADLINE), False),
        (verdict(Origin.CLIENT), False),
        (verdict(Origin.ROUTER), False),
    ],
)
def test_failures(failure: Verdict, moves: bool) -> None:
    assert failure_moves([failure]) is moves


def test_every_blame_has_an_answer() -> None:
    for blame in Blame:
        assert failure_moves([verdict(Origin.TRANSPORT)._replace(blame=blame)]) in (True, False)


def test_a_request_that_two_engines_fail_at_is_given_up() -> None:
    broken, lost = verdict(Origin.ENGINE, StatusCode.INTERNAL), verdict(Origin.TRANSPORT)
    assert not failure_moves([broken, broken])
    assert failure_moves([broken, lost]) and failure_moves([broken, lost, lost])
    assert not failure_moves([broken, lost, broken])
    passing = verdict(Origin.ENGINE, StatusCode.UNAVAILABLE)
    assert failure_moves([passing] * 5)


def changed(**fields: Any) -> Any:
    return prompt("r", 3, **fields)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (changed(), None),
        (changed(output_config=pb.OutputConfig(logprobs=3)), None),
        (changed(sampling_config=pb.SamplingConfig(seed=3, temperature=1.0)), None),
        (changed(guided_decoding=pb.GuidedDecodingParams(guide_type=2)), "guided_decoding"),
        (changed(output_config=pb.OutputConfig(prompt_logprobs=1)), "prompt_logprobs"),
        (
            changed(output_config=pb.OutputConfig(return_generation_logits=True)),
            "return_generation_logits",
        ),
        (
            changed(sampling_config=pb.SamplingConfig(num_return_sequences=2)),
            "num_return_sequences",
        ),
        (changed(multimodal_input=pb.MultimodalInput(image_data=[b"x"])), "multimodal_input"),
    ],
)
def test_requests(request_: Any, reason: str | None) -> None:
    assert why_fixed(request_, stops_held=True) == reason


def test_stop_strings_need_somebody_who_holds_what_may_be_one() -> None:
    asked = changed(stop=["end"])
    assert why_fixed(asked, stops_held=False) == "stop"
    assert why_fixed(asked, stops_held=True) is None
