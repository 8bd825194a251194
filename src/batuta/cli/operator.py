"""`batuta operator`: the scheduler of a Kubernetes cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from batuta.cli.cluster_options import OwnContextOption, OwnKubeconfigOption
from batuta.cli.telemetry_options import OtlpOption
from batuta.telemetry.log_format import LogFormat


def operator(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The configuration; without it, the defaults.", metavar="FILE"),
    ] = None,
    kubeconfig: OwnKubeconfigOption = None,
    context: OwnContextOption = None,
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", help="Where its Lease is.", metavar="NAME", envvar="POD_NAMESPACE"),
    ] = "batuta-system",
    identity: Annotated[
        str,
        typer.Option(
            "--identity",
            help="Its name in the Lease; default host and pid.",
            envvar="POD_NAME",
            metavar="NAME",
        ),
    ] = "",
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="Where the journal is; default as configured.", metavar="DIR"),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Of the API, the metrics and the probes.", metavar="N")
    ] = None,
    leader_election: Annotated[
        bool,
        typer.Option("--leader-election/--no-leader-election", help="Wait until no other operator leads."),
    ] = True,
    otlp: OtlpOption = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="How its log looks; default as configured, else json."),
    ] = None,
) -> None:
    """Schedule a Kubernetes cluster until told to end.

    Examples:

      batuta operator --kubeconfig ~/.kube/config --state-dir ./state

      batuta operator --config /etc/batuta/config.yaml
    """
    from batuta.bootstrap.kube import OperatorWords, operate

    raise typer.Exit(
        operate(
            OperatorWords(
                config,
                kubeconfig,
                context,
                namespace,
                identity,
                state_dir,
                port,
                leader_election,
                otlp,
                log_format,
            )
        )
    )
