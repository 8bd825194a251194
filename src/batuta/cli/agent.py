"""`batuta agent`: what the GPUs of a node do, and for whom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from batuta.cli.options import Output, OutputOption


def agent(
    once: Annotated[
        bool, typer.Option("--once", help="Look, print a table, and end; no cluster is asked.")
    ] = False,
    node: Annotated[
        str,
        typer.Option(
            "--node", help="The node's name; default the host's.", envvar="NODE_NAME", metavar="NAME"
        ),
    ] = "",
    interval: Annotated[float, typer.Option("--interval", help="Seconds between looks.", metavar="S")] = 1.0,
    report_every: Annotated[
        float, typer.Option("--report-every", help="Seconds between reports to the cluster.", metavar="S")
    ] = 30.0,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", help="Serve metrics and probes; default not.", metavar="N", show_default=False
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", help="The address of that port.", metavar="HOST")
    ] = "0.0.0.0",
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            "--kubeconfig",
            help="Report to this cluster; in a pod to its own without being told.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="Which cluster of it.", metavar="NAME", show_default=False)
    ] = None,
    dcgm: Annotated[
        str,
        typer.Option("--dcgm", help="Read DCGM exporter's series here, as in http://localhost:9400/metrics."),
    ] = "",
    kubelet_socket: Annotated[
        Path | None,
        typer.Option(
            "--kubelet-socket",
            help="Its podresources interface; default as kubelets have it.",
            metavar="PATH",
            show_default=False,
        ),
    ] = None,
    proc: Annotated[Path, typer.Option("--proc", help="Where the host's /proc is.", metavar="DIR")] = Path(
        "/proc"
    ),
    kernel_log: Annotated[
        Path | None,
        typer.Option(
            "--kernel-log",
            help="Look for errors of GPUs here, as in /dev/kmsg or /var/log/kern.log; default nowhere.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path, typer.Option("--state", help="Keeps how far the kernel log was read.", metavar="DIR")
    ] = Path("/var/lib/batuta/agent"),
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

    from dataclasses import asdict

    from batuta.cli.agent_view import print_usage
    from batuta.cli.terminal import print_json

    usage = look_once(options)
    if output is Output.JSON:
        print_json(asdict(usage))
    else:
        print_usage(usage)
