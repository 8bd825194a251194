"""Pods without a UnifiedJob: they start together or not at all."""

from batuta.backends.kube import names
from tests.support.kube.control_plane import wait_until
from tests.support.kube.nodes import NodeShape
from tests.support.kube.pods import Manifest, make_gang, make_pod


def test_a_plain_pod_is_bound_and_told_its_gpus(pods, add_nodes):
    """Given a node with GPUs, when a pod names Batuta, then it runs there and says which GPUs it has."""
    (node,) = add_nodes(1, NodeShape(gpus=4))
    pods.create(make_pod("one", gpus=2))
    pods.wait_for("one")
    assert pods.gpus() == {"one": (node, "0,1")}


def test_a_gang_waits_for_all_its_members(pods, add_nodes):
    """Given three of four members, nothing is bound and they say so; when the fourth comes, all are."""
    add_nodes(2, NodeShape(gpus=4))
    *first, last = make_gang("g", 4, gpus=2)
    pods.create(*first)
    pods.wait_for_word("g-0", "3 of 4 pods")
    pods.create(make_pod("alone"))
    pods.wait_for("alone")
    assert pods.bound().keys() == {"alone"}

    # One GPU is taken: the fourth member does not fit until that is free.
    pods.create(last)
    pods.wait_for_word("g-0", "needs 8 GPUs")
    pods.delete("alone")
    pods.wait_for("g-0", "g-1", "g-2", "g-3")
    assert len(set(pods.gpus().values())) == 4


def test_a_gang_that_does_not_fit_holds_nothing_and_says_why(pods, add_nodes):
    """Given too few GPUs for a gang, a later pod is bound at once, and the gang's pods say what they lack."""
    add_nodes(1, NodeShape(gpus=4))
    pods.create(*make_gang("large", 3, gpus=2), make_pod("small", gpus=4))
    pods.wait_for("small")
    pods.wait_for_word("large-0", "needs 6 GPUs")
    assert pods.bound().keys() == {"small"}
    events = f"/apis/events.k8s.io/v1/namespaces/{pods.namespace}/events"
    told = wait_until(
        lambda: {
            event["regarding"]["name"]
            for event in pods.cluster.api.items(events)
            if event["reason"] == "FailedScheduling" and "needs 6 GPUs" in event["note"]
        },
        "an event",
    )
    assert "large-0" in told


def test_members_that_end_leave_the_others_alone_and_their_gpus_to_who_waits(pods, add_nodes):
    """Given a gang that fills a node, when one member has ended, then another pod runs beside the rest."""
    add_nodes(1, NodeShape(gpus=4))
    long, short = make_gang("g", 2, gpus=2)
    short["metadata"]["annotations"]["tests.batuta.dev/runs-for"] = "1s"
    pods.create(long, short)
    pods.wait_for("g-0", "g-1")
    before = pods.all()["g-0"]["metadata"]["uid"]
    pods.create(make_pod("next", gpus=2))
    pods.wait_for("next")
    assert pods.all()["g-0"]["metadata"]["uid"] == before
    assert pods.gpus()["next"] == pods.gpus()["g-1"]


def test_more_pods_than_the_gang_needs_come_in_one_by_one(pods, add_nodes):
    """Given a gang of two, when a third of its name comes, then it takes a seat as soon as there is one."""
    add_nodes(1, NodeShape(gpus=3))
    extra = make_gang("g", 4)[3]
    extra["metadata"]["annotations"][names.GANG_SIZE] = "2"
    pods.create(*make_gang("g", 2), make_pod("other"))
    pods.wait_for("g-0", "g-1", "other")
    pods.create(extra)
    pods.wait_for_word("g-3", "0/")
    pods.delete("other")
    pods.wait_for("g-3")
    assert {"g-0", "g-1"} <= pods.bound().keys()
    assert len(set(pods.gpus().values())) == 3


def test_unlike_pods_of_a_gang_start_together(pods, add_nodes):
    """Given a launcher without GPUs and a worker that does not fit, neither is bound until both can be."""
    add_nodes(1, NodeShape(gpus=4))
    launcher, worker = make_gang("mixed", 2, gpus=4)
    del launcher["spec"]["containers"][0]["resources"]["limits"]
    pods.create(make_pod("first"))
    pods.wait_for("first")
    pods.create(launcher, worker)
    pods.wait_for_word("mixed-0", "1 of 2 members have a place")
    assert pods.bound().keys() == {"first"}
    pods.delete("first")
    pods.wait_for("mixed-0", "mixed-1")

    # What the binder has placed alone is not given to others.
    pods.create(make_pod("late"))
    pods.wait_for_word("late", "GPU")
    assert "late" not in pods.bound()


def test_pods_without_gpus_are_placed_and_wait_for_room(pods, add_nodes):
    """Given a full node, a pod without GPUs says what it lacks, and runs when there is room."""
    add_nodes(1, NodeShape(gpus=0, cpus=4))
    pods.create(make_pod("full", gpus=0, cpu="3"))
    pods.wait_for("full")
    pods.create(make_pod("next", gpus=0, cpu="2"))
    pods.wait_for_word("next", "cpu")
    pods.delete("full")
    pods.wait_for("next")


def test_pods_with_scheduling_gates_wait_for_them(pods, add_nodes):
    add_nodes(1, NodeShape(gpus=4))
    gated, other = make_gang("g", 2)
    gated["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
    pods.create(gated, other, make_pod("free"))
    pods.wait_for("free")
    assert pods.bound().keys() == {"free"}
    pods.cluster.api.patch(f"{pods.path}/g-0", {"spec": {"schedulingGates": None}})
    pods.wait_for("g-0", "g-1")


def test_pods_of_other_schedulers_are_counted(pods, add_nodes):
    """Given a pod that somebody else has bound, its GPUs are not given away, also while it ends."""
    (node,) = add_nodes(1, NodeShape(gpus=4))
    foreign = make_pod("foreign", gpus=3, annotations={"tests.batuta.dev/stops-after": "2s"})
    foreign["spec"]["schedulerName"] = "somebody-else"
    pods.create(foreign)
    pods.cluster.bind(pods.namespace, "foreign", node)
    pods.create(make_pod("one"))
    pods.wait_for("one")
    pods.create(make_pod("two", gpus=2))
    pods.wait_for_word("two", "GPU")
    pods.delete("foreign", grace_s=30)
    pods.wait_for("two")
    assert "foreign" not in pods.all()


def test_a_queue_has_its_quota_and_a_higher_priority_goes_first_in_it(pods, add_nodes):
    """Given a queue with one GPU, of two that wait for it the higher priority gets it."""
    for name, value in (("gang-low", 1), ("gang-high", 1000)):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value}
        pods.cluster.apply(kind | {"metadata": {"name": name}})

    def make(name: str, priority: str) -> Manifest:
        pod = make_pod(name, labels={names.QUEUE_NAME: "narrow"})
        pod["spec"]["priorityClassName"] = priority
        return pod

    add_nodes(1, NodeShape(gpus=4))
    pods.create(make("first", "gang-high"))
    pods.wait_for("first")
    pods.create(make("a-low", "gang-low"))
    pods.wait_for_word("a-low", "its queue has")
    pods.create(make("z-high", "gang-high"))
    pods.wait_for_word("z-high", "its queue has")
    pods.delete("first")
    pods.wait_for("z-high")
    assert "a-low" not in pods.bound()
