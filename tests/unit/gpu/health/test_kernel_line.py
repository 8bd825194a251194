"""Lines about GPUs are understood whatever wrote them down; all others are left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core.health_rules import Source
from batuta.gpu.health.kernel_log import KernelError, normalize_pci_address, parse_line, timestamp_s

FALLEN = "NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
REST = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "before",
    [
        "",
        "4,1234,5678901234,-;",
        "[ 1231741.378609] ",
        "Nov  6 10:00:00 node-1 kernel: [  12.345678] ",
        "kern  :err   : 2025-01-25T10:34:54,859532+00:00 ",
        '{"MESSAGE":"',
    ],
)
def test_an_xid_is_found_behind_anything(before):
    assert parse_line(before + FALLEN) == KernelError(Source.XID, 79, "0000:3b:00", REST, None)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "NVRM: Xid (PCI:0009:01:00): 43, pid=3188489, name=train, channel 0x0b00000a",
            (Source.XID, 43, "0009:01:00", 3188489),
        ),
        ("NVRM: Xid (PCI:0000:01:00): 31, pid='77', name=x", (Source.XID, 31, "0000:01:00", 77)),
        ("NVRM: Xid (PCI:0000:01:00): 45", (Source.XID, 45, "0000:01:00", None)),
        (
            "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x000001c0, 0x00bd5c8a}",
            (Source.SXID, 12028, "0000:84:00", None),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 22013, Non-fatal, Link 12 DLREQ interrupt",
            (Source.SXID, 22013, "0000:05:00", None),
        ),
    ],
)
def test_what_the_drivers_write_is_understood(line, found):
    error = parse_line(line)
    assert error is not None
    assert (error.source, error.code, error.pci, error.pid) == found


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
        "NVRM: Xid (PCI:0000:01:00): many",
        "NVRM: GPU at PCI:0000:3b:00: GPU-5c5a7a",
        "my program saw Xid 79 today",
    ],
)
def test_other_lines_tell_nothing(line):
    assert parse_line(line) is None


@given(st.text(max_size=300))
def test_no_line_is_too_strange(text):
    assert parse_line(text) is None or "id" in text
    timestamp_s(text)


@pytest.mark.parametrize("spelling", ["0000:3b:00", "00000000:3B:00.0", "0000:3b:00.0", "3B:00"])
def test_an_address_has_one_spelling(spelling):
    assert normalize_pci_address(spelling) == "0000:3b:00"


@pytest.mark.parametrize(
    ("earlier", "later", "seconds"),
    [
        ("6,1,5000000,-;a", "6,2,7500000,-;b", 2.5),
        ("[   12.5] a", "[   20.0] b", 7.5),
        ("2026-11-16T10:00:00.5+00:00 a", "2026-11-16T11:00:01,5+01:00 b", 1.0),
        ("Feb 29 23:59:59 n a", "Mar  1 00:00:01 n b", 2.0),
    ],
)
def test_times_of_one_log_can_be_compared(earlier, later, seconds):
    first, second = timestamp_s(earlier), timestamp_s(later)
    assert first is not None
    assert second is not None
    assert second - first == pytest.approx(seconds)


@pytest.mark.parametrize("line", ["no time", "Foo 12 10:00:00 x", "Feb 31 10:00:00 x", "2026-13-01T10:00:00Z x"])
def test_a_line_without_a_time_has_none(line):
    assert timestamp_s(line) is None
