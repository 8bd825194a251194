"""The binder: where each pod goes, by the steps of the scheduling framework. Pure: no I/O and no clock.

A `Cluster` is told of nodes and pods as they come and go; a `Binder` places groups of pods on it.
"""

from batuta.backends.kube.binder.binder import Binder
from batuta.backends.kube.binder.cluster import Cluster
from batuta.backends.kube.binder.group import Binding, Group, Member, Outcome, Refusal, Within
from batuta.backends.kube.binder.plugin import Need, No, Plugin, Scope
from batuta.backends.kube.binder.profile import BadProfile, Profile, default_profile, profile_of

__all__ = [
    "BadProfile",
    "Binder",
    "Binding",
    "Cluster",
    "Group",
    "Member",
    "Need",
    "No",
    "Outcome",
    "Plugin",
    "Profile",
    "Refusal",
    "Scope",
    "Within",
    "default_profile",
    "profile_of",
]
