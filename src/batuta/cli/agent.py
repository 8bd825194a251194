"""`batuta agent`: measure the GPUs of a node, and report or print their use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.options import Output, OutputOption, flag, option
from batuta.cli.output import DASH, Column, format_number, print_result, print_table

if TYPE_CHECKING:
    from batuta.gpu.profiler.usage import GpuUsage, JobUsage, NodeUsage


def agent(
    once: Annotated[bool, flag("--once", "Look, print a table, and end; no cluster is asked.")] = False,
    node: Annotated[str, option("The node's name; default the host's.", "NAME", envvar="NODE_NAME")] = "",
    interval: Annotated[float, option("Seconds between looks.", "S")] = 1.0,
    report_every: Annotated[float, option("Seconds between reports to the cluster.", "S")] = 30.0,
    metrics_port: Annotated[int | None, option("Serve metrics and probes; default not.", "N")] = None,
    listen: Annotated[str, option("The address of that port.", "HOST")] = "0.0.0.0",
    kubeconfig: Annotated[
        Path | None, option("Report to this cluster; in a pod to its own without being told.", "FILE")
    ] = None,
    context: Annotated[str | None, option("Which cluster of it.", "NAME")] = None,
    dcgm: Annotated[str, option("Read DCGM exporter's series here, as in http://localhost:9400/metrics.")] = "",
    kubelet_socket: Annotated[
        Path | None, option("Its podresources interface; default as kubelets have it.", "PATH")
    ] = None,
    proc: Annotated[Path, option("Where the host's /proc is.", "DIR")] = Path("/proc"),
    kernel_log: Annotated[
        Path | None,
        option("Look for errors of GPUs here, as in /dev/kmsg or /var/log/kern.log; default nowhere.", "FILE"),
    ] = None,
    state: Annotated[Path, option("Keeps how far the kernel log was read.", "DIR")] = Path("/var/lib/batuta/agent"),
    output: OutputOption = Output.TABLE,
) -> None:
    """Watch the GPUs of this node, and tell the cluster how they are used.

    Utilisation, memory, traffic, power; which pod and job each process belongs to, and how jobs behave. In a
    cluster they become annotations batuta.dev/gpu.* of the node and its pods; with --metrics-port also
    metrics batuta_gpu_*. With --kernel-log the operator is told of errors of GPUs, and looks after them.

    Examples:
      batuta agent --once
      batuta agent --node worker-1 --kubeconfig ~/.kube/config --metrics-port 9477
      batuta agent --kernel-log /dev/kmsg
    """
    from batuta.bootstrap.agent import AgentOptions, look_once, run_agent

    more = {} if kubelet_socket is None else {"kubelet_socket": kubelet_socket}
    options = AgentOptions(
        node=node,
        interval_s=interval,
        report_every_s=report_every,
        listen=listen,
        metrics_port=metrics_port,
        kubeconfig=kubeconfig,
        context=context,
        dcgm_url=dcgm,
        proc=proc,
        kernel_log=kernel_log,
        state=state,
        **more,
    )
    if not once:
        raise typer.Exit(run_agent(options))
    print_result(look_once(options), output, print_usage)


_GPUS: tuple[Column[GpuUsage], ...] = (
    Column("GPU", lambda gpu: str(gpu.index), right=True),
    Column("MODEL", lambda gpu: gpu.model, least=6),
    Column("UTIL", lambda gpu: format_number(gpu.utilisation, ".0%"), right=True),
    Column("MEMORY", lambda gpu: f"{format_number(gpu.memory_used_mib, '.0f')}/{gpu.memory_mib:.0f}MiB", right=True),
    Column("PCIE", lambda gpu: format_number(gpu.pcie_mib_s, ".0f", "MiB/s"), right=True, drop=4),
    Column("NVLINK", lambda gpu: format_number(gpu.nvlink_mib_s, ".0f", "MiB/s"), right=True, drop=5),
    Column("POWER", lambda gpu: format_number(gpu.power_w, ".0f", "W"), right=True, drop=3),
    Column("TEMP", lambda gpu: format_number(gpu.temperature_c, ".0f", "C"), right=True, drop=2),
    Column("JOBS", lambda gpu: ", ".join(dict.fromkeys(owner.job for owner in gpu.owners)) or DASH, least=8),
)
_JOBS: tuple[Column[JobUsage], ...] = (
    Column("JOB", lambda job: job.job, least=8),
    Column("GPUS", lambda job: ",".join(map(str, job.gpus))),
    Column(
        "UTIL", lambda job: format_number(None if job.utilisation is None else job.utilisation.mean, ".0%"), right=True
    ),
    Column("MEMORY", lambda job: format_number(job.memory_mib, ".0f", "MiB"), right=True),
    Column("TYPE", lambda job: job.behaviour.activity.value, drop=1),
    Column("STAGE", lambda job: job.behaviour.stage.value, drop=2),
    Column("BOTTLENECK", lambda job: job.behaviour.bottleneck.value, drop=3),
)


def print_usage(usage: NodeUsage) -> None:
    """Print the GPUs, then the jobs on them."""
    print_table(_GPUS, usage.gpus, "no GPUs")
    typer.echo()
    print_table(_JOBS, usage.jobs, "no jobs of Batuta on them")
