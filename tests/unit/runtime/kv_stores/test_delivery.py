"""The subject that acknowledges a message of a stream, in both forms that servers send."""

import pytest

from dynamo_router.runtime.kv_stores.nats_messages import Delivery, read_delivery

SHORT = "$JS.ACK.events.r1.1.7.5.1700000000000000000.3"
LONG = "$JS.ACK.hub.AbC123.events.r1.1.7.5.1700000000000000000.3"


@pytest.mark.parametrize(
    "reply",
    [
        SHORT,
        LONG,
        LONG + ".xR4nd0m",  # of a domain, with the random token
        "$JS.ACK._.AbC123.events.r1.1.7.5.1700000000000000000.3.99",  # of no domain
        LONG + ".77.more",  # as the form says: what follows is to be passed over
    ],
)
def test_both_forms_say_where_a_message_stands(reply: str) -> None:
    assert read_delivery(reply) == Delivery(stream_sequence=7, consumer_sequence=5, pending=3)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "_INBOX.abc",
        "$JS.ACK.",
        "$JS.FC.events.r1.1.7.5.17.3",
        SHORT.rpartition(".")[0],
        SHORT + ".1",
        SHORT.replace(".7.", ".x."),
        SHORT.replace(".5.", ".-5."),
        LONG.removesuffix("3") + "three",
    ],
)
def test_what_is_no_such_subject_says_nothing(reply: str) -> None:
    assert read_delivery(reply) is None
