"""Traffic over PCIe and NVLink, with a driver that has counters, and one that has to measure."""

from types import SimpleNamespace
from typing import Any

import pytest

from batuta.gpu.profiler.sources import Traffic

MIB = 1 << 20


class DriverError(Exception):
    """As pynvml raises it."""


class Lost(DriverError):
    """The GPU is off the bus."""


class Driver:
    """The few calls of pynvml that are needed, on counters that a test moves."""

    NVMLError, NVMLError_GpuIsLost = DriverError, Lost
    NVML_SUCCESS = 0
    NVML_FI_DEV_PCIE_COUNT_RX_BYTES, NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 198, 197
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 139, 138
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    def __init__(self, **counters: int) -> None:
        self.counters = {int(name[1:]): value for name, value in counters.items()}
        self.asked: list[int] = []
        self.measured = 0
        self.failure: DriverError | None = None

    def nvmlDeviceGetFieldValues(self, handle: object, fields: list[Any]) -> list[SimpleNamespace]:  # noqa: N802
        if self.failure is not None:
            raise self.failure
        numbers = [one[0] if isinstance(one, tuple) else one for one in fields]
        self.asked += numbers
        return [
            SimpleNamespace(
                nvmlReturn=0 if number in self.counters else 3,
                value=SimpleNamespace(ullVal=self.counters.get(number, 0)),
            )
            for number in numbers
        ]

    def nvmlDeviceGetPcieThroughput(self, handle: object, which: int) -> int:  # noqa: N802
        self.measured += 1
        return 1024 * 1024


def test_counters_become_rates():
    driver = Driver(f198=0, f197=0, f139=0, f138=0)
    traffic = Traffic(driver, None)
    assert set(traffic.rates_mib_s(10.0, measure=True).values()) == {None}  # one reading is no rate
    driver.counters = {198: 20 * MIB, 197: 10 * MIB, 139: 4096, 138: 2048}  # NVLink counts in KiB
    assert traffic.rates_mib_s(12.0, measure=True) == {
        "pcie_rx": 10.0,
        "pcie_tx": 5.0,
        "nvlink_rx": 2.0,
        "nvlink_tx": 1.0,
    }
    assert driver.measured == 0


def test_a_counter_that_was_reset_is_no_rate():
    driver = Driver(f198=50 * MIB)
    traffic = Traffic(driver, None)
    traffic.rates_mib_s(10.0, measure=False)
    driver.counters = {198: MIB}
    assert traffic.rates_mib_s(11.0, measure=False)["pcie_rx"] is None
    driver.counters = {198: 2 * MIB}
    assert traffic.rates_mib_s(12.0, measure=False)["pcie_rx"] == 1.0


def test_a_driver_without_counters_is_asked_once_and_measures_in_its_turn():
    driver = Driver()
    traffic = Traffic(driver, None)
    first = traffic.rates_mib_s(1.0, measure=True)
    assert first["pcie_rx"] == pytest.approx(1000.0)
    assert (first["nvlink_rx"], len(driver.asked), driver.measured) == (None, 4, 2)
    # The last measurement holds until its turn comes again.
    assert traffic.rates_mib_s(2.0, measure=False) == first
    assert (len(driver.asked), driver.measured) == (4, 2)


def test_a_gpu_that_comes_back_has_its_counters_again():
    driver = Driver(f198=0)
    driver.failure = Lost()
    traffic = Traffic(driver, None)
    assert traffic.rates_mib_s(1.0, measure=False)["pcie_rx"] is None
    driver.failure = None
    traffic.rates_mib_s(2.0, measure=False)
    driver.counters = {198: MIB}
    assert traffic.rates_mib_s(3.0, measure=False)["pcie_rx"] == 1.0
