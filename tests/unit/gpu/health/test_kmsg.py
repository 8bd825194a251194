"""The kernel's own log is read on by record number, and anew after a reboot."""

import os
import socket
from pathlib import Path

import pytest

from batuta.gpu.health.kernel_log import KmsgLog


class Device:
    """Like /dev/kmsg: every open begins with the oldest record, every read gives one."""

    def __init__(self) -> None:
        self.records: dict[int, str] = {}
        self.boot = "boot-1"
        self.next = 0

    def prints(self, *texts: str) -> None:
        for text in texts:
            self.records[self.next] = text
            self.next += 1

    def open(self) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for number, text in self.records.items():
            theirs.send(f"6,{number},{number * 1000},-;{text}\n SUBSYSTEM=pci\n".encode())
        theirs.close()
        ours.setblocking(False)
        return ours.detach()

    @property
    def log(self) -> KmsgLog:
        return KmsgLog(self.open, lambda: self.boot)


def texts(lines):
    return [line.partition(";")[2] for line in lines]


def test_newcomers_get_all_since_the_boot_and_then_what_is_new():
    device = Device()
    device.prints("a", "b")
    first = device.log.read(None)
    assert texts(first.lines) == ["a", "b"]
    assert device.log.read(first.cursor).lines == ()
    device.prints("c")
    assert texts(device.log.read(first.cursor).lines) == ["c"]


def test_after_a_reboot_numbers_begin_anew_and_so_does_reading():
    device = Device()
    device.prints("a", "b")
    before = device.log.read(None)
    rebooted = Device()
    rebooted.boot = "boot-2"
    rebooted.prints("x")
    after = rebooted.log.read(before.cursor)
    assert texts(after.lines) == ["x"]
    assert after.missed == ""


def test_records_that_were_overwritten_are_counted():
    device = Device()
    device.prints("a")
    first = device.log.read(None)
    device.prints("b", "c", "d")
    del device.records[1], device.records[2]
    batch = device.log.read(first.cursor)
    assert texts(batch.lines) == ["d"]
    assert batch.missed.startswith("2 records")


def test_an_empty_log_has_a_cursor_too():
    device = Device()
    empty = device.log.read(None)
    device.prints("a")
    assert texts(device.log.read(empty.cursor).lines) == ["a"]


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel log cannot be read here")
def test_the_real_device_is_read_once():
    try:
        first = KmsgLog().read(None)
    except PermissionError:
        pytest.skip("the kernel log cannot be read here")
    assert first.cursor["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    seen = {line.split(",", 2)[1] for line in first.lines}
    again = {line.split(",", 2)[1] for line in KmsgLog().read(first.cursor).lines}
    assert not seen & again
