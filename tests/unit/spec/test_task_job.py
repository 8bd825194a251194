"""A task becomes a job: sizes in GPUs, types as the nodes spell them, priors until something is measured."""

import pytest

from batuta.core.cluster import Node
from batuta.core.job import ANY_TYPE, JobKind, Share
from batuta.spec.task import parse_task
from batuta.spec.task_elastic import find_kind
from batuta.spec.task_job import LONGEST_CURVE, NEVER_S, check_fits, task_to_job


def job_of(text: str, **options):
    return task_to_job(parse_task(f"run: x\n{text}"), "j-1", 10.0, **options)


@pytest.mark.parametrize(
    ("text", "size", "low", "high", "sizes", "each"),
    [
        ("resources: {accelerators: H100:8}\nnum_nodes: 4", 32, 32, 32, None, 8),
        ("resources: {accelerators: T4}\nelastic: {max_nodes: 4}", 1, 1, 4, None, 1),
        ("resources: {accelerators: T4:2}\nelastic: {sizes: [1, 2, 4]}", 2, 2, 8, (2, 4, 8), 2),
        (
            "resources: {accelerators: T4:2}\nelastic: {min_nodes: 1, max_nodes: 5, step: 2}",
            2,
            2,
            10,
            (2, 6, 10),
            2,
        ),
        ("num_nodes: 3\nresources: {accelerators: 1}", 3, 3, 3, None, 1),
        ("num_nodes: 3", 3, 3, 3, None, 0),
    ],
)
def test_sizes_count_gpus_and_a_replica_is_a_nodes_worth(text, size, low, high, sizes, each):
    job = job_of(text)
    assert (job.size, job.min, job.max, job.sizes, job.gpus_per_replica) == (size, low, high, sizes, each)


def test_who_and_where_are_kept():
    text = "name: net\nresources: {accelerators: T4, priority: 7, labels: {kueue.x-k8s.io/queue-name: q}}"
    job = job_of(text, user="ann", sequence=3)
    assert (job.id, job.submit_s, job.user, job.sequence) == ("j-1", 10.0, "ann", 3)
    assert (job.name, job.application, job.queue, job.priority) == ("net", "net", "q", 7)
    job = job_of("")
    assert (job.name, job.application, job.queue, job.priority) == ("j-1", "", "default", 0)


@pytest.mark.parametrize(
    ("text", "replicas", "cpus_milli", "memory_mib"),
    [
        ("", 1, 1000, 0),
        ("num_nodes: 3\nresources: {cpus: 4+, memory: 8+}", 3, 4000, 8192),
        ("resources: {cpus: 0.5, accelerators: 0}", 1, 500, 0),
        ("resources: {accelerators: null, memory: 512MB}", 1, 1000, 512),
    ],
)
def test_a_task_without_accelerators_is_cpu_only(text, replicas, cpus_milli, memory_mib):
    job = job_of(text)
    assert (job.cpu_only, job.gpus, job.replicas, job.gpu_types) == (True, 0, replicas, ANY_TYPE)
    assert (job.cpus_milli_per_gpu, job.memory_mib_per_gpu) == (cpus_milli, memory_mib)
    assert job.faults() == []


def test_a_cpu_only_task_that_no_node_has_room_for_is_told_so():
    nodes = [Node("a", 4, cpus_milli=8000, memory_mib=4096), Node("b", 0, cpus_milli=2000, memory_mib=65536)]
    job = job_of("resources: {cpus: 16}", nodes=nodes)
    assert [one.message for one in check_fits(job, nodes)] == ["needs 16 CPUs on each node; the largest node has 8"]
    both = job_of("resources: {cpus: 4, memory: 8}", nodes=nodes)
    assert [one.message for one in check_fits(both, nodes)] == ["no single node has all that one replica needs"]
    many = job_of("num_nodes: 6\nresources: {cpus: 2}", nodes=nodes)
    assert [one.message for one in check_fits(many, nodes)] == ["needs room for 6 replicas; the cluster has room for 5"]
    assert check_fits(job_of("num_nodes: 5\nresources: {cpus: 2}", nodes=nodes), nodes) == []


def test_a_task_with_accelerators_does_not_fit_on_nodes_without():
    nodes = [Node("b", 0, cpus_milli=2000)]
    job = job_of("resources: {accelerators: 1}", nodes=nodes)
    assert [one.message for one in check_fits(job, nodes)] == ["no node of the cluster has a GPU"]


def test_cpus_and_memory_are_divided_among_the_gpus_of_a_node():
    job = job_of("resources: {accelerators: T4:3, cpus: 4+, memory: 16}")
    assert (job.cpus_milli_per_gpu, job.memory_mib_per_gpu) == (1333, 5461)


def test_types_are_spelled_as_the_nodes_spell_them():
    nodes = [Node("a", 8, "h100"), Node("b", 8, "A100")]
    assert job_of("resources: {accelerators: [H100:8, A100:8]}").gpu_types == (("H100", 1.0), ("A100", 1.0))
    assert job_of("resources: {accelerators: [H100:8, a100:8]}", nodes=nodes).gpu_types == (
        ("h100", 1.0),
        ("A100", 1.0),
    )
    assert job_of("resources: {accelerators: '4'}", nodes=nodes).gpu_types == ANY_TYPE


def test_of_alternatives_with_different_counts_the_first_that_fits_is_taken():
    text = "resources: {accelerators: [H100:8, A100:4, T4:4]}"
    assert (job_of(text).size, job_of(text).gpu_types) == (8, (("H100", 1.0),))
    job = job_of(text, nodes=[Node("a", 4, "T4"), Node("b", 4, "A100")])
    assert (job.size, job.gpu_types) == (4, (("A100", 1.0), ("T4", 1.0)))
    assert job_of(text, nodes=[Node("a", 1, "K80")]).size == 8


def test_of_candidates_the_first_that_fits_is_taken():
    text = "resources: {any_of: [{accelerators: H100, cpus: 64}, {accelerators: H100, cpus: 8}]}"
    assert job_of(text).cpus_milli_per_gpu == 64_000
    assert job_of(text, nodes=[Node("a", 4, "H100", cpus_milli=16_000)]).cpus_milli_per_gpu == 8_000


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("resources: {accelerators: H100:0.5}", Share(40_000, 50)),
        ("resources: {accelerators: H100:0.01}", Share(800, 1)),
        ("gpu: {memory: 8GiB, compute: 50%}", Share(8192, 50)),
        ("gpu: {memory: 8GiB, compute: 50%, limit: hard}", Share(8192, 50)),
        ("gpu: {memory: 8GiB, compute: 50%, limit: soft}", Share(8192, 50, soft=True)),
        ("gpu: {memory: 8GiB}\nresources: {accelerators: H100}", Share(8192, 0)),
        ("gpu: {memory: 8GiB}\nresources: {accelerators: H100:0.25}", Share(8192, 25)),
        ("gpu: {compute: 10%}\nresources: {accelerators: H100:0.5}", Share(40_000, 10)),
    ],
)
def test_a_share_is_of_one_gpu(text, share):
    job = job_of(text, nodes=[Node("a", 8, "H100", gpu_memory_mib=80_000)])
    assert (job.share, job.size, job.min, job.max) == (share, 1, 1, 1)


def test_two_halves_of_a_gpu_fit_on_one_however_large_it_is():
    nodes = [Node("a", 1, "H100", gpu_memory_mib=81_559), Node("b", 1, "H100", gpu_memory_mib=81_920)]
    share = job_of("resources: {accelerators: H100:0.5}", nodes=nodes).share
    assert 2 * share.memory_mib <= 81_559


@pytest.mark.parametrize(
    ("text", "interval_s"),
    [
        ("", NEVER_S),
        ("resources: {accelerators: 1}\nelastic: {max_nodes: 2}", None),
        ("elastic: {checkpoint_interval: 5m}", 300.0),
    ],
)
def test_what_a_stop_loses_follows_from_the_checkpoints(text, interval_s):
    assert job_of(text).checkpoint_interval_s == interval_s


def test_speed_is_a_prior_until_it_is_measured():
    curve = job_of("resources: {accelerators: T4:2}\nelastic: {max_nodes: 4}").curve
    assert (len(curve.speeds), curve.at(8)) == (9, pytest.approx(8**0.9))
    assert len(job_of("num_nodes: 100000\nresources: {accelerators: 1}").curve.speeds) == LONGEST_CURVE + 1


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        ("python train.py", JobKind.SCRIPT),
        ("torchrun train.py", JobKind.TORCH_ELASTIC),
        ("exec /opt/bin/torchrun --nnodes 2 train.py", JobKind.TORCH_ELASTIC),
        ("python -m torch.distributed.run train.py", JobKind.TORCH_ELASTIC),
        ("python3 -m torch.distributed.launch train.py", JobKind.SCRIPT),
        ("# torchrun train.py\npython train.py", JobKind.SCRIPT),
        ("python train.py --launcher=mytorchrun torchrun.py", JobKind.SCRIPT),
        ("mpirun -np 4 python train.py", JobKind.MPI),
        ("cd x && mpiexec ./train", JobKind.MPI),
        ("horovodrun -np 4 python train.py", JobKind.MPI),
        (
            "horovodrun -np 4 --min-np 2 --host-discovery-script ./d.sh python train.py",
            JobKind.HOROVOD_ELASTIC,
        ),
    ],
)
def test_the_kind_is_found_out_from_the_launcher(run, kind):
    assert find_kind(run) is kind


def test_the_kind_can_be_said():
    assert job_of("elastic: {kind: mpi}").kind is JobKind.MPI
    assert job_of("elastic: {kind: auto}").kind is JobKind.SCRIPT
