import pytest

from batuta.gpu.devices import short_name


@pytest.mark.parametrize(
    ("driver", "task_file"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA L40S", "L40S"),
        ("Quadro", "Quadro"),
    ],
)
def test_a_gpu_has_the_name_that_task_files_use(driver: str, task_file: str) -> None:
    assert short_name(driver) == task_file
