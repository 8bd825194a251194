"""How fast a job runs at each size and how long it will take, measured from what it reports."""

from batuta.prediction.scaling import Footprint
from batuta.prediction.speed_meter import Run, SpeedMeter, TransitionMeter, fit_together, replay
from batuta.prediction.throughput import ProgressUpdate, Sample, SizeSpeed

__all__ = [
    "Footprint",
    "ProgressUpdate",
    "Run",
    "Sample",
    "SizeSpeed",
    "SpeedMeter",
    "TransitionMeter",
    "fit_together",
    "replay",
]
