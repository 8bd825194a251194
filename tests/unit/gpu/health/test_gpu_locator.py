"""A line of the kernel log is about one GPU of one node, or about nobody's."""

import pytest

from batuta.gpu.health.findings import GpuLocation, GpuLocator
from batuta.gpu.health.kernel_log import parse_line

SEVERAL = GpuLocator({"n0": ["00000000:01:00.0", "00000000:02:00.0"], "n1": ["00000000:01:00.0"]})
ONE = GpuLocator({"n0": ["00000000:3B:00.0"], "n1": ["00000000:86:00.0"]}, one_machine=True)


def places(where: GpuLocator, line: str) -> tuple[GpuLocation, ...]:
    error = parse_line(line)
    assert error is not None
    return where.of(line, error)


@pytest.mark.parametrize(
    ("where", "line", "found"),
    [
        (SEVERAL, "Nov 16 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:01:00): 79, x", [("n1", 0)]),
        (SEVERAL, "2026-11-16T10:00:00Z n0.lab kernel: NVRM: Xid (PCI:0000:02:00): 79, x", [("n0", 1)]),
        (SEVERAL, "NVRM: Xid (PCI:0000:02:00): 79, x", [("n0", 1)]),
        (SEVERAL, "NVRM: Xid (PCI:0000:01:00): 79, x", []),
        (SEVERAL, "Nov 16 10:00:00 n1 kernel: NVRM: Xid (PCI:0000:02:00): 79, x", []),
        (SEVERAL, "n1 kernel: nvidia-nvswitch0: SXid (PCI:0000:84:00.0): 12028, x", [("n1", None)]),
        (SEVERAL, "nvidia-nvswitch0: SXid (PCI:0000:84:00.0): 12028, x", []),
        (ONE, "box kernel: NVRM: Xid (PCI:0000:86:00): 79, x", [("n1", 0)]),
        (ONE, "4,12,34,-;NVRM: Xid (PCI:0000:3b:00): 79, x", [("n0", 0)]),
        (ONE, "nvidia-nvswitch0: SXid (PCI:0000:84:00.0): 12028, x", [("n0", None), ("n1", None)]),
        (ONE, "NVRM: Xid (PCI:0000:af:00): 79, x", []),
    ],
)
def test_a_line_finds_its_gpu(where: GpuLocator, line: str, found: list[tuple[str, int | None]]):
    assert list(places(where, line)) == found
