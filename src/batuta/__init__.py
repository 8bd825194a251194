"""Batuta: a GPU cluster scheduler for elastic deep-learning training.

One decision core, three places to run it: a simulation, real processes on one machine, a Kubernetes cluster.
"""

__version__ = "0.1.0"
