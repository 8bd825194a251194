"""What holds a job up is told in one sentence."""

import json

from batuta.api.event_text import held_up_sentence, public_event
from batuta.core import event as ev
from batuta.core.reason import Reason
from batuta.store.codec import encode
from batuta.store.journal import StoredEvent

SLOW = (("rank", 5), ("ranks", 16), ("slowdown", 2.04), ("own_s", 0.408), ("usual_s", 0.2), ("steps", 13))


def told(*args, **more) -> str:
    return held_up_sentence(json.loads(encode(ev.JobHeldUp(100.0, "7", *args, **more))))


def test_a_straggler_with_its_numbers_and_what_follows():
    assert told(Reason.STRAGGLER, SLOW, (5,), ("n2",), ("n2",), 3700.0) == (
        "is held up by a straggler: rank 5 of 16 needs 2.0 times as long as most for its part of a step, "
        "0.408 s instead of 0.2 s, for 13 steps; n2 is to blame; it stays away from n2 for 60 min"
    )


def test_several_ranks_are_all_named():
    assert "(ranks 4, 5, 6); n1, n2 are to blame" in told(Reason.STRAGGLER, SLOW, (5, 4, 6), ("n1", "n2"))


def test_when_nobody_can_be_blamed_it_is_said():
    assert told(Reason.HANG, (("silent_s", 1800.0), ("usual_s", 1.5))) == (
        "hangs: it has reported nothing for 1800 s, and used to every 1.5 s; the cause is not known"
    )
    assert "too few agree" in told(Reason.UNEVEN_RANKS, SLOW)


def test_numbers_that_are_missing_do_not_make_it_silent():
    assert told(Reason.STRAGGLER) == "is held up; the cause is not known"


def test_readers_of_events_get_the_sentence():
    entry = StoredEvent(3, encode(ev.JobHeldUp(100.0, "7", Reason.STRAGGLER, SLOW, (5,), ("n2",))))
    shown = public_event(entry)
    assert shown.jobs == {"7"}
    assert json.loads(shown.data)["sentence"].endswith("n2 is to blame")
