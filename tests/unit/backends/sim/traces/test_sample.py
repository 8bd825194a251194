"""The workload that comes with Batuta is what the generator makes, byte for byte."""

from importlib import resources

from batuta.backends.sim.traces.batuta_jsonl import dump_workload
from batuta.backends.sim.traces.generator import GeneratorOptions, generate
from batuta.backends.sim.traces.reader import sample_workload
from batuta.backends.sim.workload import summarise_workload
from batuta.spec.cluster import read_cluster

SAMPLE_OPTIONS = GeneratorOptions(
    jobs=120,
    seed=7,
    name="sample",
    gpus=32,
    load=0.9,
    start_hour=9.0,
    sizes=((1, 35), (2, 27), (4, 23), (8, 15)),
    duration_scale=0.2,
    shortest_s=60.0,
    longest_s=3 * 3600.0,
    users=8,
)


def test_generating_the_sample_again_gives_the_same_bytes():
    shipped = resources.files("batuta").joinpath("data", "sample.jsonl").read_bytes()
    assert dump_workload(generate(SAMPLE_OPTIONS)).encode() == shipped


def test_the_sample_fills_eight_nodes_for_some_hours():
    summary = summarise_workload(sample_workload(), read_cluster("8x4"))
    assert (summary.jobs, summary.elastic_jobs, summary.impossible_jobs) == (120, 120, 0)
    assert summary.load is not None
    assert 0.85 < summary.load < 0.95
    assert 6 * 3600 < summary.span_s < 12 * 3600


def test_every_sample_job_also_fits_a_cluster_of_four_nodes():
    assert summarise_workload(sample_workload(), read_cluster("4x4")).impossible_jobs == 0
