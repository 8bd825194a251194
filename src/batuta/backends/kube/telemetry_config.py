"""What an operator tells of itself, as the configuration and the chart have it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from batuta.backends.kube.settings import Settings
from batuta.telemetry.log_format import LogFormat


class TelemetryConfig(Settings):
    """Traces and logs."""

    otlp_url: Annotated[str, StringConstraints(pattern=r"^(https?://[^/\s]+(/\S*)?)?$", max_length=2048)] = (
        Field(
            default="",
            description="where traces go over OTLP/HTTP, as in http://collector:4318; empty means nowhere",
        )
    )
    log_format: LogFormat = Field(
        default=LogFormat.JSON,
        strict=False,
        description="json is one object per line, with the ids of cycle and job; text is for people",
    )
