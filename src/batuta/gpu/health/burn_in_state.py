"""What the driver says of a GPU in a burn-in: what is not as it should be, whatever the GPU can do."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from batuta.gpu.health.burn_in_checks import Failed
from batuta.gpu.health.nvml_figures import MOST_LINKS


class Nvml:
    """What the driver says of GPUs."""

    def __init__(self) -> None:
        import pynvml  # noqa: PLC0415 - a server can do without

        self.api: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise Failed(f"NVML cannot be used: {error}") from None

    def find(self, gpu: str) -> tuple[Any, str]:
        """Handle and UUID."""
        api = self.api
        try:
            is_number = gpu.isdecimal()
            handle = (
                api.nvmlDeviceGetHandleByIndex(int(gpu))
                if is_number
                else api.nvmlDeviceGetHandleByUUID(gpu.encode())
            )
            uuid = api.nvmlDeviceGetUUID(handle)
        except api.NVMLError as error:
            raise Failed(f"GPU {gpu} does not answer: {error}") from None
        return handle, uuid.decode() if isinstance(uuid, bytes) else str(uuid)

    def uncorrected(self, handle: Any) -> int:
        api = self.api
        with suppress(api.NVMLError):
            kind = api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
            return int(api.nvmlDeviceGetTotalEccErrors(handle, kind, api.NVML_VOLATILE_ECC))
        return 0

    def check_state(self, handle: Any) -> str:
        """Rows, links and heat are as they should be; what is not supported is not judged."""
        api, told = self.api, []
        with suppress(api.NVMLError):
            _, _, pending, failed = api.nvmlDeviceGetRemappedRows(handle)
            if failed:
                raise Failed("a row of its memory could not be remapped")
            if pending:
                raise Failed("a row of its memory waits for a reset to be remapped")
            told.append("no rows wait")
        up = [self._link(handle, link) for link in range(MOST_LINKS)]
        down = [str(link) for link, active in enumerate(up) if active is False]
        if True in up:  # else it has none, or none that leads anywhere
            if down:
                raise Failed(f"NVLink is down: link {', '.join(down)}")
            told.append(f"{len(up) - up.count(None)} links up")
        with suppress(api.NVMLError):
            heat_c = api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU)
            most_c = api.nvmlDeviceGetTemperatureThreshold(handle, api.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
            if heat_c >= most_c:
                raise Failed(f"it is {heat_c} °C hot, and slows down at {most_c} °C")
            told.append(f"{heat_c} °C")
        return ", ".join(told) or "nothing to ask"

    def _link(self, handle: Any, link: int) -> bool | None:
        with suppress(self.api.NVMLError):
            return bool(self.api.nvmlDeviceGetNvLinkState(handle, link))
        return None
