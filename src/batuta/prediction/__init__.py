"""How fast a job runs at each size and how long it will take, measured from what it reports."""

from batuta.prediction.footprint import Footprint
from batuta.prediction.replay import Run, replay
from batuta.prediction.sample import News, Sample
from batuta.prediction.size_record import SizeSpeed
from batuta.prediction.speed_meter import SpeedMeter, fit_together
from batuta.prediction.transition_meter import TransitionMeter, TransitionTimes

__all__ = [
    "Footprint",
    "News",
    "Run",
    "Sample",
    "SizeSpeed",
    "SpeedMeter",
    "TransitionMeter",
    "TransitionTimes",
    "fit_together",
    "replay",
]
