import pytest

from batuta.demo.training import Options, parse_options


def test_every_option_has_its_flag():
    line = "--steps 7 --batch 8 --seed 9 --work-ms 1.5 --comm-ms 0.5 --checkpoint-every 3 --timeout 4"
    found = parse_options(line.split())
    assert found == Options(steps=7, batch=8, seed=9, work_ms=1.5, comm_ms=0.5, checkpoint_every=3, timeout_s=4)
    assert parse_options([]) == Options()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--batch 0", "--batch must be within 1..2048, found 0"),
        ("--batch 4096", "--batch must be within 1..2048, found 4096"),
        ("--steps -1", "--steps must be a number from 0, found -1"),
        ("--work-ms nan", "--work-ms must be a number from 0, found nan"),
        ("--comm-ms inf", "--comm-ms must be a number from 0, found inf"),
        ("--steps many", "invalid int value: 'many'"),
    ],
)
def test_what_makes_no_sense_is_refused(line, sentence, capsys):
    with pytest.raises(SystemExit) as refused:
        parse_options(line.split())
    assert refused.value.code == 2
    assert sentence in capsys.readouterr().err


def test_work_is_shared_and_talk_is_added():
    options = Options(work_ms=400, comm_ms=10)
    assert [options.step_s(gpus) for gpus in (1, 2, 4)] == pytest.approx([0.4, 0.21, 0.13])
