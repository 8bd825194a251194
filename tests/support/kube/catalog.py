"""Which programs can be had, and what each is built from. Versions stand in the go.mod files only."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.kube.toolchain import REPO, Version, go_version

MODULES = REPO / "tests" / "kube" / "controlplane"
"""One folder with a go.mod for each set of programs that have to agree on their dependencies."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program: the folder with its go.mod, the package to build, the module that gives its version."""

    name: str
    folder: str
    package: str
    versioned_by: str
    stamps: tuple[str, ...] = ()
    """Values that the linker sets, with `{version}`: what the program says when it is asked."""

    @property
    def source(self) -> Path:
        return MODULES / self.folder

    @property
    def version(self) -> str:
        line = rf"^\s*(?:require )?{re.escape(self.versioned_by)} (v\S+)"
        return self._in_go_mod(line)

    @property
    def go_wanted(self) -> Version:
        """The oldest Go that can build it."""
        return go_version(self._in_go_mod(r"^go (\S+)$"))

    def _in_go_mod(self, line: str) -> str:
        path = self.source / "go.mod"
        found = re.search(line, path.read_text(), re.MULTILINE)
        assert found is not None, f"{path} has no line like {line}"
        return found.group(1)


def _kubernetes(name: str) -> Program:
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    stamps = tuple(f"{package}.gitVersion={{version}}" for package in packages)
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes", stamps)


def _other(name: str, module: str, stamps: tuple[str, ...] = ()) -> Program:
    return Program(name, name, f"{module}/cmd/{name}", module, stamps)


# Helm lints and renders for this Kubernetes unless it is told another; its own default is 1.20.
_HELM_STAMPS = (
    "helm.sh/helm/v3/internal/version.version={version}",
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=36",
)

PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "kubernetes", "./etcd", "go.etcd.io/etcd/server/v3"),
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubectl"),
        _kubernetes("kubelet"),
        _other("kwok", "sigs.k8s.io/kwok"),
        _other("mpi-operator", "github.com/kubeflow/mpi-operator"),
        Program("otelcol", "otelcol", ".", "go.opentelemetry.io/collector/otelcol"),
        Program("kueue", "kueue", "./manager", "sigs.k8s.io/kueue"),
        _other("helm", "helm.sh/helm/v3", _HELM_STAMPS),
        _other("kubeconform", "github.com/yannh/kubeconform", ("main.version={version}",)),
    )
}
