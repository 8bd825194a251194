"""Texts that any client may have written: they are read within bounds, or say nothing."""

from fractions import Fraction

import msgspec
import pytest

from batuta.backends.kube import names
from batuta.backends.kube.bounded_text import (
    LONGEST_JSON,
    by_gpu,
    read_decimal,
    read_gpus,
    read_json,
    read_quantity,
    read_signed,
    read_time,
    read_whole,
    read_wholes,
)

DIGITS = "1" * 4_301  # one more than int() takes


@pytest.mark.parametrize("text", [None, "", DIGITS, "-1", "+1", "1.0", "٣", "²", "1_0", " 1", "1e3"])
def test_what_is_no_plain_number_is_none(text):
    assert read_whole(text) is None


def test_a_number_beyond_its_bounds_is_none():
    assert read_whole("17", least=1, most=17) == 17
    assert read_whole("18", least=1, most=17) is None
    assert read_whole("0", least=1, most=17) is None


def test_a_list_of_which_one_item_cannot_be_read_is_empty():
    assert read_wholes("3, 1,3") == (3, 1)
    assert read_wholes("3,x") == ()
    assert read_wholes("3," * 50_000) == ()


def test_gpus_of_a_pod_are_those_that_a_node_can_have():
    assert read_gpus({names.GPUS: "0,7"}) == (0, 7)
    assert read_gpus({names.GPUS: "1024"}) == ()
    assert read_gpus({names.GPUS: DIGITS}) == ()
    assert by_gpu({"3": "ill", "x": "?", DIGITS: "?"}) == {3: "ill"}


@pytest.mark.parametrize(("text", "value"), [("-5", -5), ("+5", 5), ("--5", None), ("-+5", None), ("-", None)])
def test_numbers_of_node_affinity_may_have_a_sign(text, value):
    assert read_signed(text) == value


@pytest.mark.parametrize("text", ["NaN", "inf", "Infinity", "1e999", "0x1", "1_0", DIGITS, "", "--1"])
def test_what_is_no_finite_number_is_none(text):
    assert read_decimal(text) is None


def test_a_quantity_is_exact_and_cut_off_where_kubernetes_cuts_it_off():
    assert read_quantity("500m") == Fraction(1, 2)
    assert read_quantity("1e999") == 2**63 - 1
    assert read_quantity("-1e999") == -(2**63 - 1)
    assert read_quantity("1e-999") == Fraction(1, 10**9)
    assert read_quantity("0") == 0
    assert read_quantity(DIGITS) is None
    assert read_quantity("1e9999") is None


class Report(msgspec.Struct):
    gpus: list[int] = []


def test_json_that_is_too_long_too_deep_or_of_another_type_says_nothing():
    empty = Report([7])
    assert read_json('{"gpus":[1]}', Report, empty).gpus == [1]
    for text in (
        None,
        "",
        "{",
        "[]",
        '{"gpus":["a"]}',
        '{"gpus":[' + DIGITS + "]}",
        '{"other":' + "[" * 5_000 + "]" * 5_000 + "}",
        '{"gpus":[1]}' + " " * LONGEST_JSON,
        "\ud800",
    ):
        assert read_json(text, Report, empty) is empty


@pytest.mark.parametrize(
    "text",
    [
        None,
        7,
        "",
        "noon",
        "0001-01-01T00:00:00+23:59",
        "1960-01-01T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01",
        "2" * 99,
    ],
)
def test_what_is_no_time_since_1970_is_none(text):
    assert read_time(text) is None


def test_times_are_read_as_the_api_server_writes_them():
    assert read_time("1970-01-02T00:00:00Z") == 86_400.0
    assert read_time("1970-01-02T01:00:00.25+01:00") == 86_400.25
    assert read_time("2024-02-29T12:34:56.123456789Z") == pytest.approx(1_709_210_096.123456)
    assert read_time("9999-12-31T23:59:59Z") == 253_402_300_799.0
    assert read_time("2026-01-01T00:00:00.000000Z") == read_time("2026-01-01T00:00:00Z")
