"""Voda's file of epochs is a file of reports."""

from datetime import timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from batuta.spec.progress import ProgressReport, parse_voda_csv

COLUMNS = "epoch accuracy epoch_time_sec batch_size loss start_time step_time_sec steps total_epochs workers"
HEADER = COLUMNS.replace(" ", ",") + "\r\n"
FIRST = "0,0.5,10.5,128,1.25,2021-07-21 04:24:04.500000,0.021,500,20,2\r\n"
SECOND = "1,0.75,5.5,256,0.5,2021-07-21 04:24:15,0.022,250,20,4\r\n"
START_S = 1626841444.5


def test_each_row_is_a_report_of_epochs_that_are_finished():
    first, second = parse_voda_csv((HEADER + FIRST + SECOND).encode())
    assert first == ProgressReport(
        time_s=START_S + 10.5,
        epoch=1,
        total_epochs=20,
        loss=1.25,
        metrics=(("accuracy", 0.5), ("batch_size", 128.0), ("steps", 500.0)),
        workers=2,
        step_time_s=0.021,
        epoch_time_s=10.5,
    )
    assert (second.epoch, second.workers, second.time_s, second.fraction) == (2, 4, START_S + 16, 0.1)


def test_times_are_those_of_the_machine_that_wrote_them():
    taipei = timezone(timedelta(hours=8))
    (report,) = parse_voda_csv((HEADER + FIRST).encode(), timezone=taipei)
    assert report.time_s == START_S + 10.5 - 8 * 3600


def test_half_a_row_waits_for_its_end():
    data = (HEADER + FIRST + SECOND.strip()).encode()
    assert len(parse_voda_csv(data)) == 1
    assert len(parse_voda_csv(data, final=True)) == 2


def test_columns_come_in_any_order_and_may_be_missing():
    text = "total_epochs,epoch\n20,4\n"
    assert parse_voda_csv(text.encode()) == (ProgressReport(epoch=5, total_epochs=20),)


def test_a_header_that_is_written_again_after_a_restart_is_passed_over():
    assert len(parse_voda_csv((HEADER + FIRST + HEADER + SECOND).encode())) == 2


def test_missing_values_and_lists_are_left_out():
    text = 'epoch,loss,lr,start_time,total_epochs,workers\n3,NA,"""[1, 2]""",NA,0,NA\n'
    assert parse_voda_csv(text.encode()) == (ProgressReport(epoch=4),)


def test_a_loss_that_is_no_number_any_more_is_noted():
    assert parse_voda_csv(b"epoch,loss\n0,nan\n") == (ProgressReport(epoch=1, nonfinite=("loss",)),)


def test_rows_that_are_no_reports_are_passed_over():
    rows = ["x,1\n", "1\n", "-1,2\n", "0.5,2\n", '"\n', "\n", "2,1\n"]
    assert parse_voda_csv(("epoch,loss\n" + "".join(rows)).encode()) == (ProgressReport(epoch=3, loss=1.0),)


def test_a_file_without_its_header_has_no_reports():
    assert parse_voda_csv((FIRST + SECOND).encode()) == ()


@given(st.binary(max_size=120) | st.text(alphabet='epoch,loss0123456789\n"\r.-\0', max_size=80).map(str.encode))
def test_no_bytes_make_it_raise(data):
    for text in (data, b"epoch,start_time,loss\n" + data):
        parse_voda_csv(text, final=True)
