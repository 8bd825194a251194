"""Applying manifests with kubectl, which knows every way to log in to a cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from batuta.backends.kube.install.release import Manifest
from batuta.spec.problem import InputError

FIELD_MANAGER = "batuta-install"
_ESTABLISHED_WITHIN_S = 60


class KubectlFailed(Exception):
    """kubectl ended with an error; what it said went to standard error."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One cluster, as kubectl finds it."""

    program: str
    kubeconfig: str = ""
    context: str = ""

    @staticmethod
    def find(kubeconfig: str = "", context: str = "") -> Kubectl:
        program = shutil.which("kubectl")
        if program is None:
            raise InputError.of(
                "--apply needs kubectl, and there is none on PATH",
                fix="install it, or pipe the manifests to where it is: batuta install | kubectl apply "
                "--server-side -f -",
            )
        return Kubectl(program, kubeconfig, context)

    def apply(self, definitions: Sequence[Manifest], others: Sequence[Manifest]) -> None:
        """Definitions first: the API server takes a moment until it serves them."""
        self._apply(definitions)
        for definition in definitions:
            name = definition["metadata"]["name"]
            self._run(
                "wait", "--for=condition=Established", f"--timeout={_ESTABLISHED_WITHIN_S}s", f"crd/{name}"
            )
        self._apply(others)

    def _apply(self, manifests: Sequence[Manifest]) -> None:
        if manifests:
            document = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
            self._run(
                "apply",
                "--server-side",
                f"--field-manager={FIELD_MANAGER}",
                "-f",
                "-",
                text=json.dumps(document),
            )

    def _run(self, *words: str, text: str = "") -> None:
        cluster = [
            *((f"--kubeconfig={self.kubeconfig}",) if self.kubeconfig else ()),
            *((f"--context={self.context}",) if self.context else ()),
        ]
        done = subprocess.run([self.program, *cluster, *words], input=text, text=True, check=False)
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {words[0]} ended with exit code {done.returncode}")
