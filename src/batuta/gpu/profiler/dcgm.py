"""What NVIDIA's DCGM exporter knows and NVML does not: how many multiprocessors work, traffic by counters."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from batuta.gpu.profiler.sample import GpuSample, NodeSample

_MIB: Final = 1 << 20
_LONGEST_BYTES: Final = 8 << 20
_LINE: Final = re.compile(r"^(?P<name>DCGM_FI_[A-Z0-9_]+)\{(?P<labels>[^}]*)\}\s+(?P<value>[-+0-9.eE]+)")
_UUID: Final = re.compile(r'(?:^|,)\s*UUID="(?P<uuid>[^"]+)"')
_SERIES: Final = {
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_activity", 1.0),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("pcie_rx_mib_s", 1 / _MIB),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("pcie_tx_mib_s", 1 / _MIB),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("nvlink_rx_mib_s", 1 / _MIB),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("nvlink_tx_mib_s", 1 / _MIB),
}
"""Series → field of a sample, and its unit there. All are rates."""


class NoDcgm(Exception):
    """The exporter does not answer."""


@dataclass(frozen=True, slots=True)
class DcgmReading:
    """One scrape: fields of samples by the UUID of the GPU."""

    time_s: float
    by_uuid: Mapping[str, Mapping[str, float]]


def parse(text: str, time_s: float) -> DcgmReading:
    """Reads the exporter's page. A line for a part of a GPU (MIG) or of another series is left out."""
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or match["name"] not in _SERIES or 'GPU_I_ID="' in match["labels"]:
            continue
        uuid = _UUID.search(match["labels"])
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if uuid is not None and value >= 0:
            field, unit = _SERIES[match["name"]]
            found.setdefault(uuid["uuid"], {})[field] = value * unit
    return DcgmReading(time_s, found)


def fetch(url: str, time_s: float, within_s: float = 3.0) -> DcgmReading:
    """Scrapes the exporter once; NoDcgm where that does not work."""
    try:
        with urllib.request.urlopen(url, timeout=within_s) as answer:
            return parse(answer.read(_LONGEST_BYTES).decode(errors="replace"), time_s)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise NoDcgm(f"no DCGM exporter at {url}: {error}") from None


def enriched(sample: NodeSample, reading: DcgmReading | None, stale_s: float = 60.0) -> NodeSample:
    """The sample with what the exporter knows better; as it is where that is old."""
    if reading is None or not 0 <= sample.time_s - reading.time_s <= stale_s:
        return sample
    return replace(sample, gpus=tuple(_with(gpu, reading.by_uuid.get(gpu.uuid)) for gpu in sample.gpus))


def _with(gpu: GpuSample, known: Mapping[str, float] | None) -> GpuSample:
    fields: Mapping[str, Any] = known or {}
    return replace(gpu, **fields) if fields else gpu
