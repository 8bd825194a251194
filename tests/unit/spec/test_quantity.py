"""Amounts, memory and percentages are read as people and SkyPilot write them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.spec.problem import InputError
from batuta.spec.quantity import (
    Amount,
    parse_amount,
    parse_memory_gib,
    parse_memory_mib,
    parse_milli,
    parse_percent,
    show_milli,
)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4", Amount(4)),
        ("4+", Amount(4, True)),
        ("0.5", Amount(0.5)),
        ("4.", Amount(4)),
        ("8 +", Amount(8, True)),
    ],
)
def test_an_amount_is_exact_or_at_least(text, amount):
    assert parse_amount(text) == amount


@pytest.mark.parametrize(
    ("text", "gib", "or_more"),
    [
        ("32", 32, False),
        ("32+", 32, True),
        ("64GB", 64, False),
        ("64 GiB+", 64, True),
        ("512mb", 0.5, False),
        ("2T", 2048, False),
        ("1PB", 2**20, False),
    ],
)
def test_memory_is_in_gib_and_all_units_are_powers_of_1024(text, gib, or_more):
    assert parse_memory_gib(text) == Amount(gib, or_more)


@pytest.mark.parametrize(("text", "mib"), [("8GiB", 8192), ("8", 8192), ("512MB", 512), ("1.5g", 1536)])
def test_memory_of_a_gpu_is_in_mib(text, mib):
    assert parse_memory_mib(text) == mib


@pytest.mark.parametrize(("text", "percent"), [("50%", 50), ("50", 50), ("1 %", 1), ("100%", 100)])
def test_a_share_of_compute_is_in_percent(text, percent):
    assert parse_percent(text) == percent


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (parse_amount, ["", "0", "-1", "nan", "inf", "1e3", "4++", "four", "+4", "9" * 13, "4,5", "٣"]),
        (parse_memory_gib, ["", "0GB", "-1", "4 XB", "GB", "4GB4", "1.2.3", "32x"]),
        (parse_memory_mib, ["8GiB+", "1KB", "0", "", "none"]),
        (parse_percent, ["0", "101", "0.5", "50%%", "-5", "", "half"]),
    ],
)
def test_what_is_no_amount_is_refused_with_an_example(parse, texts):
    for text in texts:
        with pytest.raises(InputError) as caught:
            parse(text)
        assert caught.value.problems[0].fix, text


@given(st.text(max_size=40))
def test_no_text_does_anything_worse_than_to_be_refused(text):
    for parse in (parse_amount, parse_memory_gib, parse_memory_mib, parse_percent):
        with contextlib.suppress(InputError):
            parse(text)


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("8", 8000),
        ("0", 0),
        ("500m", 500),
        ("1.5", 1500),
        (".5", 500),
        ("5.", 5000),
        ("1e3", 1_000_000),
        ("1E-3", 1),
        ("10000Gi", 10000 * 2**30 * 1000),
        ("2k", 2_000_000),
        ("1Ki", 1_024_000),
        ("-1", -1000),
        ("+2", 2000),
        ("1n", 1),
        ("1u", 1),
        ("1.0001", 1001),
        ("7E", 7 * 10**18 * 1000),
    ],
)
def test_a_quantity_of_kubernetes_is_whole_thousandths_rounded_up(text, milli):
    assert parse_milli(text) == milli


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "10GiB", "10GB", "1e", "0x1", "1_000", "½", "1K", "9" * 25, "10E"])
def test_what_is_no_quantity_of_kubernetes_is_refused(text):
    with pytest.raises(InputError):
        parse_milli(text)


@given(st.integers(0, 2**63 - 1), st.booleans())
def test_thousandths_are_shown_so_that_they_are_read_as_the_same(milli, is_bytes):
    assert parse_milli(show_milli(milli, is_bytes=is_bytes)) == milli


def test_bytes_are_shown_in_the_largest_whole_unit():
    assert show_milli(10000 * 2**30 * 1000, is_bytes=True) == "10000Gi"
    assert show_milli(1024 * 1000) == "1024"
    assert show_milli(1500) == "1500m"
