"""A training script hears when a checkpoint is wanted, in whatever way it can."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from batuta import sdk
from batuta.sdk import _requests
from tests.support.scripts import ask, reports_of, run_script


def test_a_checkpoint_is_wanted_until_it_is_made(control, progress):
    assert not sdk.checkpoint_requested()
    ask(control, 1)
    assert sdk.checkpoint_requested()
    assert sdk.checkpoint_requested()
    sdk.checkpointed(Path("/c/10"), step=10)
    assert not sdk.checkpoint_requested()
    assert (control / "checkpoint-done").read_text() == "1\n"
    ask(control, 2)
    assert sdk.checkpoint_requested()
    sdk.checkpointed("/c/20", step=20)
    heard, *saved = reports_of(progress)
    assert (heard.saves_on_request, heard.is_checkpoint) == (True, False)
    assert [(report.checkpoint_path, report.step, report.request) for report in saved] == [
        ("/c/10", 10, 1),
        ("/c/20", 20, 2),
    ]


def test_who_looks_for_requests_says_once_that_it_saves_when_asked(control, progress):
    sdk.report(step=1)
    assert [report.saves_on_request for report in reports_of(progress)] == [False]
    for _ in range(3):
        sdk.checkpoint_requested()
    assert [report.saves_on_request for report in reports_of(progress)] == [False, True]


def test_a_checkpoint_that_nobody_asked_for_is_reported_and_answers_nothing(control, progress):
    sdk.checkpointed("/c", step=1)
    (report,) = reports_of(progress)
    assert (report.is_checkpoint, report.request) == (True, None)
    assert list(control.iterdir()) == []


def test_the_answer_of_one_process_holds_for_all(control):
    ask(control, 4)
    code = "from batuta import sdk; print(sdk.checkpoint_requested()); sdk.checkpointed('/c')"
    assert run_script(code, BATUTA_CONTROL=str(control)).stdout == "True\n"
    assert not sdk.checkpoint_requested()


@pytest.mark.parametrize("written", ["", "x", "-1", "1.5", "9" * 40, "\n"])
def test_a_request_that_is_no_number_is_none(control, written):
    ask(control, written)
    assert sdk.checkpoint_requested() is written.startswith("9")


def test_an_answer_that_cannot_be_written_still_ends_the_request_here(control, capsys):
    ask(control, 1)
    (control / "checkpoint-done").mkdir()
    assert sdk.checkpoint_requested()
    sdk.checkpointed("/c")
    assert not sdk.checkpoint_requested()
    assert "could not be answered" in capsys.readouterr().err
    assert sorted(path.name for path in control.iterdir()) == ["checkpoint-done", "checkpoint-request"]


def test_any_thread_may_ask_and_be_the_first_to_import_it(control):
    ask(control, 1)
    code = """if True:
        import threading
        def work():
            from batuta import sdk
            print(sdk.checkpoint_requested())
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """
    done = run_script(code, BATUTA_CONTROL=str(control), BATUTA_JOB_ID="1")
    assert (done.stdout, done.stderr) == ("True\n", "")


SIGNALLED = """if True:
    import os, signal
    {before}
    from batuta import sdk
    {after}
    os.kill(os.getpid(), signal.SIGUSR1)
    print(sdk.checkpoint_requested())
    sdk.checkpointed("/c")
    print(sdk.checkpoint_requested())
"""
OWN = "signal.signal(signal.SIGUSR1, lambda number, frame: print('own', number))"


def test_without_the_folder_a_signal_is_a_request():
    done = run_script(SIGNALLED.format(before="", after=""), BATUTA_JOB_ID="1")
    assert (done.returncode, done.stdout) == (0, "True\nFalse\n")


def test_a_handler_that_was_there_before_is_called_too():
    done = run_script(SIGNALLED.format(before=OWN, after=""), BATUTA_JOB_ID="1")
    assert done.stdout == f"own {int(signal.SIGUSR1)}\nTrue\nFalse\n"


def test_a_handler_that_comes_later_has_the_signal_and_the_files_still_work(control):
    ask(control, 1)
    done = run_script(SIGNALLED.format(before="", after=OWN), BATUTA_JOB_ID="1", BATUTA_CONTROL=str(control))
    assert done.stdout == f"own {int(signal.SIGUSR1)}\nTrue\nFalse\n"


def test_a_signal_that_comes_after_the_answer_is_no_new_request(control, monkeypatch):
    monkeypatch.setenv("BATUTA_JOB_ID", "1")
    _requests.listen()
    ask(control, 1)
    sdk.checkpointed("/c")
    os.kill(os.getpid(), signal.SIGUSR1)
    assert not sdk.checkpoint_requested()


def test_a_signal_does_not_end_a_script_that_imports_it():
    code = "from batuta import sdk; import os, signal; os.kill(os.getpid(), signal.SIGUSR1); print('alive')"
    assert run_script(code, BATUTA_JOB_ID="1").stdout == "alive\n"
    assert run_script(code).returncode == -signal.SIGUSR1


def test_a_listening_process_can_be_told_from_one_that_a_signal_would_kill():
    """The local backend signals only those whose mask says that they catch it (Linux)."""
    code = """if True:
        from batuta import sdk
        import signal
        (line,) = [line for line in open("/proc/self/status") if line.startswith("SigCgt")]
        print(bool(int(line.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1))
    """
    assert run_script(code, BATUTA_JOB_ID="1").stdout == "True\n"
    assert run_script(code).stdout == "False\n"


def test_a_shell_script_can_ask_as_well(control):
    lines = (sdk.__doc__ or "").splitlines()
    start = next(k for k, line in enumerate(lines) if "number()" in line)
    script = "\n".join(lines[start : start + 2]).replace("save_checkpoint", "echo wanted")
    for request, done, said in ((None, None, ""), (2, None, "wanted\n"), (2, 1, "wanted\n"), (2, 2, "")):
        for name, number in (("checkpoint-request", request), ("checkpoint-done", done)):
            if number is not None:
                (control / name).write_text(f"{number}\n")
        found = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        assert (found.stdout, found.stderr) == (said, "")
