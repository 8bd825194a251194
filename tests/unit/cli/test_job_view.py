"""Jobs in words."""

import pytest

from batuta.apitypes.resources import Gpus, Job, ProgressSeen, ReasonGiven
from batuta.cli.job_view import exit_code_of, gpus_of, progress_of, reason_text, state_of


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (Job("1", state="RUNNING", gpus=Gpus(2, 4, 1, 8)), "2/4 (1–8)"),
        (Job("1", state="RUNNING", gpus=Gpus(2, 2, 2, 2)), "2/2"),
        (Job("1", state="SUCCEEDED", gpus=Gpus(0, 4, 1, 8)), "4 (1–8)"),
    ],
)
def test_gpus(job, text):
    assert gpus_of(job) == text


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (None, "–"),
        (ProgressSeen(), "–"),
        (ProgressSeen(fraction=0.425), "42%"),
        (ProgressSeen(step=1200), "step 1,200"),
        (ProgressSeen(epoch=2.5), "epoch 2.5"),
    ],
)
def test_progress(progress, text):
    assert progress_of(Job("1", progress=progress)) == text


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (Job("1", state="PENDING", reason=ReasonGiven("WAITING_FOR_GPUS", "needs 4")), "needs 4"),
        (Job("1", state="PENDING"), ""),
        (Job("1", state="FAILED", exit_code=3), "exit code 3"),
        (Job("1", state="FAILED", exit_code=3, detail="setup failed"), "setup failed"),
        (Job("1", state="SUCCEEDED", exit_code=0), ""),
    ],
)
def test_reasons(job, text):
    assert reason_text(job) == text


@pytest.mark.parametrize(
    ("state", "code"),
    [
        *(("SUCCEEDED", 0), ("FAILED", 100), ("FAILED_SETUP", 100), ("CANCELLED", 103)),
        *(("PENDING", 101), ("RUNNING", 101)),
    ],
)
def test_exit_codes(state, code):
    assert exit_code_of(Job("1", state=state)) == code


def test_a_wish_is_part_of_the_state():
    assert str(state_of(Job("1", state="PREEMPTED", wish="park"))) == "PREEMPTED (parked)"
    assert str(state_of(Job("1", state="CANCELLED", wish="cancel"))) == "CANCELLED"
