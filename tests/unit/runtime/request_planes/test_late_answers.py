"""A stall of the caller's process is no silence of the worker: what it sent is read first."""

from typing import Any, cast

from support.adversity.late_loop import LateLoop

from dynamo_router.runtime.request_planes.answer import Answer, AnswerTimeouts
from dynamo_router.runtime.request_planes.faults import Fault


class Line:
    def forget(self, answer: Answer) -> None:
        pass

    def close(self) -> None:
        pass


class Listener:
    def __init__(self) -> None:
        self.faults: list[Fault | None] = []

    def on_part(self, part: Any) -> None:
        pass

    def on_end(self, fault: Fault | None, text: str) -> None:
        self.faults.append(fault)


def sent(loop: LateLoop) -> tuple[Answer, Listener]:
    listener = Listener()
    answer = Answer("json", listener, lambda: None, AnswerTimeouts())
    answer._loop = cast(Any, loop)
    answer.on_sent(cast(Any, Line()))
    return answer, listener


async def test_a_worker_that_is_silent_in_time_has_failed() -> None:
    loop = LateLoop()
    _, listener = sent(loop)
    loop.look(5.05)
    assert listener.faults == [Fault.SILENT]


async def test_an_acknowledgement_that_lay_unread_counts() -> None:
    loop = LateLoop()
    answer, listener = sent(loop)
    loop.look(60.0)
    answer.on_ack("")
    loop.look(5.0)
    assert not listener.faults
    loop.look(60.0)  # and so does the call home
    assert not listener.faults
    answer.close()


async def test_after_a_stall_and_a_look_a_silent_worker_has_failed() -> None:
    loop = LateLoop()
    _, listener = sent(loop)
    loop.look(60.0)
    assert not listener.faults
    loop.look(60.0)
    assert listener.faults == [Fault.SILENT]
