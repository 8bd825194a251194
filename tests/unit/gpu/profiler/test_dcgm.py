"""What the DCGM exporter knows is used while it is fresh."""

import pytest

from batuta.gpu.profiler.sources import DcgmUnavailable, NodeSample, add_dcgm, fetch_dcgm, parse_dcgm
from tests.unit.gpu.profiler.scenes import gpu

PAGE = """\
# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-0",device="nvidia0",modelName="A100",Hostname="n"} 0.731
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-1",device="nvidia1",GPU_I_PROFILE="1g.5gb",GPU_I_ID="7"} 0.5
DCGM_FI_PROF_NVLINK_RX_BYTES{gpu="0",UUID="GPU-0",device="nvidia0"} 1048576
DCGM_FI_PROF_NVLINK_TX_BYTES{gpu="0",UUID="GPU-0",device="nvidia0"} 2.097152e+06
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0"} 41
DCGM_FI_PROF_PCIE_RX_BYTES{gpu="0",UUID="GPU-0"} NaN
up 1
"""


def test_its_series_complete_a_sample():
    sample = add_dcgm(NodeSample(1010.0, (gpu(0, 0.9), gpu(1, 0.9))), parse_dcgm(PAGE, 1000.0))
    first, second = sample.gpus
    assert (first.sm_activity, first.nvlink_mib_s, first.pcie_mib_s) == (0.731, 3.0, None)
    assert second.sm_activity is None  # a part of a GPU is not the GPU


@pytest.mark.parametrize("age_s", [61.0, -1.0])
def test_old_series_are_not_used(age_s: float):
    sample = NodeSample(1000.0 + age_s, (gpu(0, 0.9),))
    assert add_dcgm(sample, parse_dcgm(PAGE, 1000.0)) is sample
    assert add_dcgm(sample, None) is sample


def test_an_exporter_that_is_not_there_is_said_so():
    with pytest.raises(DcgmUnavailable, match="no DCGM exporter at http://127"):
        fetch_dcgm("http://127.0.0.1:9/metrics", 0.0, within_s=1.0)
    with pytest.raises(DcgmUnavailable):
        fetch_dcgm("nonsense", 0.0)
