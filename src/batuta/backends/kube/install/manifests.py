"""The objects of one installation as text, or applied by kubectl."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from batuta.backends.kube.install.release import Manifest
from batuta.spec.problem import InputError
from batuta.spec.task_serialization import ReadableDumper

_ESTABLISHED_WITHIN_S = 60


def as_yaml(manifests: Sequence[Manifest]) -> str:
    return yaml.dump_all(
        manifests, Dumper=ReadableDumper, sort_keys=False, allow_unicode=True, explicit_start=True, width=110
    )


def as_json(manifests: Sequence[Manifest]) -> str:
    document = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_removal(
    manifests: Sequence[Manifest], definitions: Sequence[Manifest], namespace: str, *, own_namespace: bool
) -> str:
    """Commands that delete everything, the last first; what would lose data is commented out."""
    lines = [
        "# Jobs that run go on, but nothing starts, resizes or restarts them any more.",
        *(_delete(manifest) for manifest in reversed(manifests)),
    ]
    if own_namespace:
        lines += [
            "# With the namespace goes whatever else is in it:",
            f"# kubectl delete namespace {shlex.quote(namespace)}",
        ]
    lines.append("# With the definition go all UnifiedJobs of the cluster, and their pods:")
    lines += [f"# kubectl delete crd {shlex.quote(one['metadata']['name'])}" for one in definitions]
    return "\n".join(lines) + "\n"


def _delete(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    group = manifest["apiVersion"].partition("/")[0] if "/" in manifest["apiVersion"] else ""
    kind = manifest["kind"].lower() + (f".{group}" if "." in group else "")
    words = ["kubectl", "delete", "--ignore-not-found", kind, metadata["name"]]
    if "namespace" in metadata:
        words[2:2] = ["--namespace", metadata["namespace"]]
    line = shlex.join(words)
    kept = metadata.get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    return f"# The journal's history:\n# {line}" if kept else line


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
            self._run("wait", "--for=condition=Established", f"--timeout={_ESTABLISHED_WITHIN_S}s", f"crd/{name}")
        self._apply(others)

    def _apply(self, manifests: Sequence[Manifest]) -> None:
        if manifests:
            self._run("apply", "--server-side", "--field-manager=batuta-install", "-f", "-", text=as_json(manifests))

    def _run(self, *words: str, text: str = "") -> None:
        options = {"--kubeconfig": self.kubeconfig, "--context": self.context}
        cluster = [f"{name}={value}" for name, value in options.items() if value]
        done = subprocess.run([self.program, *cluster, *words], input=text, text=True, check=False)
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {words[0]} ended with exit code {done.returncode}")
