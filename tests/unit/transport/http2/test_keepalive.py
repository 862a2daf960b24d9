"""When a silent connection is pinged, and when it is given up."""

from dynamo_router.transport.http2.keepalive import SELDOM_S, Keepalive


def test_a_peer_that_sends_is_not_pinged() -> None:
    keepalive = Keepalive(8.0, 5.0)
    assert keepalive.look(10.0, last_read=9.0) == (7.0, False, False)


def test_one_that_is_silent_is_pinged_and_one_that_stays_so_is_lost() -> None:
    keepalive = Keepalive(8.0, 5.0)
    assert keepalive.look(18.0, last_read=10.0) == (5.0, True, False)
    assert keepalive.look(20.0, last_read=10.0) == (3.0, False, False)
    assert keepalive.look(23.0, last_read=10.0).lost


def test_whatever_comes_after_the_ping_shows_that_it_lives() -> None:
    keepalive = Keepalive(8.0, 5.0)
    assert keepalive.look(18.0, last_read=10.0).ping
    assert keepalive.look(23.0, last_read=18.5) == (3.5, False, False)


def test_a_peer_that_only_answers_pings_is_asked_seldom() -> None:
    keepalive = Keepalive(8.0, 5.0)
    now, pings = 0.0, []
    heard = 0.0
    while now < 2 * SELDOM_S:
        verdict = keepalive.look(now, heard)
        assert not verdict.lost
        if verdict.ping:
            pings.append(now)
            heard = now + 0.1
            keepalive.answered()
        now += verdict.again_s
    gaps = [later - sooner for sooner, later in zip(pings[1:], pings[2:], strict=False)]
    assert len(pings) >= 3 and min(gaps) >= SELDOM_S


def test_what_concerns_a_call_starts_the_count_anew() -> None:
    keepalive = Keepalive(8.0, 5.0)
    for at in (10.0, 20.0):
        assert keepalive.look(at, last_read=at - 9).ping
        keepalive.answered()
    assert not keepalive.look(30.0, last_read=20.1).ping
    keepalive.on_call_frame()
    assert keepalive.look(31.0, last_read=22.0).ping


def test_a_look_that_comes_late_is_repeated_before_a_peer_is_lost() -> None:
    for answers in (True, False):
        keepalive = Keepalive(8.0, 5.0)
        assert keepalive.look(18.0, last_read=10.0).ping
        late = keepalive.look(25.0, last_read=10.0)
        assert not late.lost and 0 < late.again_s < 1
        heard = 25.01 if answers else 10.0
        assert keepalive.look(25.0 + late.again_s, last_read=heard).lost is not answers
