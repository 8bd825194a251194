"""The Helm chart in tests: sets of values that reach every branch of it, and what is made of them."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from batuta.backends.kube.install.chart import manifests
from batuta.backends.kube.install.release import Release, overlaid
from batuta.backends.kube.operator_config import OperatorConfig

REPO = Path(__file__).resolve().parents[2]
CHART = REPO / "deploy" / "helm" / "batuta"
# A Helm built from its module alone believes in a very old Kubernetes.
KUBE_VERSION = "v1.36.3"

Json = dict[str, Any]
Key = tuple[str, str, str]

VARIANTS: dict[str, Json] = {
    "defaults": {},
    "several namespaces": {"namespaces": ["chart-team-a", "chart-team-b"], "rbac": {"userRoles": False}},
    "one replica on a volume": {
        "replicas": 1,
        "journal": {
            "type": "persistentVolumeClaim",
            "persistentVolumeClaim": {
                "size": "20Gi",
                "storageClassName": "fast",
                "accessMode": "ReadWriteOncePod",
            },
        },
    },
    "a volume that is there": {
        "replicas": 1,
        "journal": {"type": "persistentVolumeClaim", "persistentVolumeClaim": {"existingClaim": "mine"}},
    },
    "PostgreSQL": {
        "journal": {"type": "postgres", "postgres": {"secretName": "journal", "secretKey": "uri"}},
        "replicas": 3,
    },
    "an account that is there": {
        "serviceAccount": {"create": False, "name": "conductor"},
        "rbac": {"create": False, "userRoles": False},
    },
    "observed": {
        "serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "grafanaDashboards": {"enabled": True},
        "telemetry": {"otlpUrl": "http://collector.observed:4318", "logFormat": "text"},
    },
    "fenced": {
        "networkPolicy": {
            "enabled": True,
            "ingressFrom": [{"namespaceSelector": {"matchLabels": {"team": "ml"}}}],
            "egress": [
                {"ports": [{"port": 6443, "protocol": "TCP"}]},
                {"ports": [{"port": 53, "protocol": "UDP"}]},
            ],
        },
        "openMetrics": False,
    },
    "without admission policies": {"admissionPolicy": {"enabled": False}},
    "policies with exceptions": {
        "admissionPolicy": {"users": ["platform-admin"], "exemptNamespaces": ["kube-system", "drivers"]},
        "namespaces": ["chart-team-a"],
    },
    "fenced at the door only": {"networkPolicy": {"enabled": True}},
    "configured": {
        "config": {
            "policy": "afs-l",
            "gpuResources": ["nvidia.com/gpu"],
            "gangTimeoutSeconds": 86400,
            "restartBackoffSeconds": 60,
            "placement": {"weights": {"utilisation": 2.5, "topology": 0}},
            "queues": [
                {
                    "name": "team-a",
                    "quota": {"H100": 8, "*": 16},
                    "cohort": "research",
                    "weight": 2.0,
                    "held": False,
                },
                {"name": "team-b"},
            ],
            "leaderElection": {
                "leaseDurationSeconds": 60,
                "renewDeadlineSeconds": 40,
                "retryPeriodSeconds": 5,
            },
        }
    },
    "every field of a pod": {
        "image": {"repository": "mirror/batuta", "digest": "sha256:" + "a" * 64, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "serviceAccount": {"annotations": {"example.com/role": "conductor"}},
        "service": {"type": "NodePort", "port": 80, "annotations": {"example.com/internal": "true"}},
        "resources": {"requests": {"cpu": 2}, "limits": None},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]
                }
            }
        },
        "topologySpread": {
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
        },
        "podAnnotations": {"example.com/a": "1"},
        "podLabels": {"team": "platform", "app.kubernetes.io/name": "not-ours-to-change"},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "podDisruptionBudget": {"enabled": False},
    },
    "queues in files": {
        "queues": {"teams.yaml": "queues:\n  - {name: team-a, quota: {H100: 8}}\n", "more.yaml": "# none\n"},
        "config": {"fairSharing": True, "kueue": {"readQuota": False}},
    },
    "jobs as Workloads": {"config": {"kueue": {"showWorkloads": True}}},
    "a Kueue that decides": {"config": {"admission": "kueue"}, "namespaces": ["chart-team-a"]},
    "agents": {"agent": {"enabled": True}},
    "agents with everything": {
        "agent": {
            "enabled": True,
            "intervalSeconds": 5,
            "reportEverySeconds": 60,
            "metricsPort": 9999,
            "dcgmUrl": "http://$(HOST_IP):9400/metrics",
            "runtimeClassName": "",
            "diskCounters": True,
            "nodeSelector": None,
            "tolerations": [],
            "priorityClassName": "system-node-critical",
            "resources": {"limits": None, "requests": {"cpu": 1}},
        },
        "imagePullSecrets": [{"name": "pull"}],
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "rbac": {"create": False},
    },
    "healing": {
        "config": {"health": {"enabled": True, "poolLabel": "example.com/pool"}},
        "agent": {"enabled": True, "kernelLog": "/dev/kmsg", "diskCounters": True},
    },
    "healing, with words of its own": {
        "config": {
            "health": {
                "enabled": True,
                "rules": "version: 1\nxid:\n  - {code: 79, means: gone, action: reboot}\n",
                "burnIn": {
                    "image": "mirror/test:1",
                    "command": ["/bin/test"],
                    "runtimeClassName": "",
                    "timeoutSeconds": 60,
                },
            }
        },
        "namespaces": ["chart-team-a"],
        "agent": {"enabled": True, "kernelLog": "/var/log/kern.log", "stateDir": "/opt/state"},
    },
    "logs for a Loki": {"logCollector": {"enabled": True, "lokiUrl": "http://loki.logs"}},
    "logs for a Loki, with everything": {
        "logCollector": {
            "enabled": True,
            "lokiUrl": "https://logs.example/loki",
            "tenant": "ml",
            "tokenSecret": {"name": "loki", "key": "password"},
            "pods": "all",
            "kernelLog": "files",
            "image": {"repository": "mirror/collector", "digest": "sha256:" + "b" * 64},
            "nodeSelector": {"nvidia.com/gpu.present": "true"},
            "tolerations": [],
            "priorityClassName": "system-node-critical",
            "resources": {"limits": None, "requests": {"cpu": 1}},
        },
        "imagePullSecrets": [{"name": "pull"}],
        "rbac": {"create": False},
    },
    "logs for a Loki, of jobs only": {
        "logCollector": {"enabled": True, "lokiUrl": "http://loki.logs", "kernelLog": "none"}
    },
    "a certificate that is there": {
        "tls": {"mode": "secret", "secretName": "batuta.tls"},
        "serviceMonitor": {"enabled": True},
    },
    "a certificate for more names": {"tls": {"names": ["gpus.example.com", "192.0.2.1"]}},
    "encrypted by a mesh": {"tls": {"mode": "off"}, "serviceMonitor": {"enabled": True}},
    "parked": {"replicas": 0},
    "shared GPUs": {"devicePlugin": {"enabled": True, "computePercent": 150, "runtimeClassName": "nvidia"}},
    "shared GPUs, by the driver": {
        "devicePlugin": {
            "enabled": True,
            "mode": "dmem",
            "library": "/opt/share.so",
            "passDeviceFiles": True,
            "nodeSelector": {},
            "tolerations": [],
            "resources": {"limits": {}},
        },
        "imagePullSecrets": [{"name": "pull"}],
    },
    "another name": {"nameOverride": "conductor"},
    "a name of its own": {"fullnameOverride": "gpu-scheduler", "image": {"tag": "1.2.3"}},
}

REFUSED: dict[str, tuple[Json, str]] = {
    "an unknown key": ({"replica": 2}, "replica"),
    "an unknown key far down": ({"config": {"leaderElection": {"lease": 1}}}, "lease"),
    "a text for a number": ({"replicas": "two"}, "replicas"),
    "too many replicas": ({"replicas": 10}, "replicas"),
    "less than none": ({"replicas": -1}, "replicas"),
    "half a replica": ({"replicas": 1.5}, "replicas"),
    "a number for a text": ({"config": {"policy": 7}}, "policy"),
    "no policy": ({"config": {"policy": ""}}, "policy"),
    "an unknown kind of journal": ({"journal": {"type": "mysql"}}, "type"),
    "a journal in PostgreSQL without its Secret": ({"journal": {"type": "postgres"}}, "secretName"),
    "several replicas on one volume": ({"journal": {"type": "persistentVolumeClaim"}}, "replicas: 1"),
    "an account that is neither made nor named": (
        {"serviceAccount": {"create": False}},
        "serviceAccount.name",
    ),
    "a port beyond all ports": ({"service": {"port": 70000}}, "port"),
    "a type of Service that is none": ({"service": {"type": "ExternalName"}}, "type"),
    "a namespace that is no name": ({"namespaces": ["Team A"]}, "namespaces"),
    "a namespace that stands for all": ({"namespaces": ["*"]}, "namespaces"),
    "a resource without a domain": ({"config": {"gpuResources": ["gpu"]}}, "gpuResources"),
    "no GPUs at all": ({"config": {"gpuResources": []}}, "gpuResources"),
    "a gang that waits for ever": ({"config": {"gangTimeoutSeconds": 0}}, "gangTimeoutSeconds"),
    "a failed job without a pause": ({"config": {"restartBackoffSeconds": 0}}, "restartBackoffSeconds"),
    "a negative weight": ({"config": {"placement": {"weights": {"numa": -1}}}}, "numa"),
    "a queue without a name": ({"config": {"queues": [{"weight": 1}]}}, "name"),
    "a queue of no weight": ({"config": {"queues": [{"name": "a", "weight": 0}]}}, "weight"),
    "a queue twice": ({"config": {"queues": [{"name": "a"}, {"name": "a"}]}}, "twice"),
    "a leader that outlives its Lease": (
        {"config": {"leaderElection": {"renewDeadlineSeconds": 20}}},
        "renewDeadlineSeconds < leaseDurationSeconds",
    ),
    "somebody else who decides": ({"config": {"admission": "volcano"}}, "admission"),
    "a queue that is no text": ({"queues": {"a.yaml": {"name": "a"}}}, "a.yaml"),
    "a digest that is none": ({"image": {"digest": "sha256:abc"}}, "digest"),
    "a tag with a space": ({"image": {"tag": "a b"}}, "tag"),
    "an amount that is none": ({"resources": {"requests": {"memory": "2 GB"}}}, "memory"),
    "a size that is none": ({"journal": {"sizeLimit": "large"}}, "sizeLimit"),
    "an interval without a unit": ({"serviceMonitor": {"interval": "30"}}, "interval"),
    "an unknown way to encrypt": ({"tls": {"mode": "on"}}, "mode"),
    "a certificate that is nowhere": ({"tls": {"mode": "secret"}}, "tls.secretName"),
    "a name with a blank": ({"tls": {"names": ["gpus example"]}}, "names"),
    "an unknown way to share": ({"devicePlugin": {"mode": "magic"}}, "mode"),
    "less than all of a GPU": ({"devicePlugin": {"computePercent": 50}}, "computePercent"),
    "an agent that reports too rarely": ({"agent": {"reportEverySeconds": 120}}, "reportEverySeconds"),
    "an exporter that is no address": ({"agent": {"dcgmUrl": "localhost:9400"}}, "dcgmUrl"),
    "logs for nobody": ({"logCollector": {"enabled": True}}, "lokiUrl"),
    "a Loki that is no address": ({"logCollector": {"lokiUrl": "loki:3100"}}, "lokiUrl"),
    "a kernel log that is nowhere": ({"logCollector": {"kernelLog": "dmesg"}}, "kernelLog"),
    "a list for a mapping": ({"nodeSelector": []}, "nodeSelector"),
}


def release_of(values: Mapping[str, Any], name: str = "batuta", namespace: str = "batuta-system") -> Release:
    """The same release in Python."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    return Release(overlaid([values]), namespace, version, name)


def installed(kind: str, values: Mapping[str, Any], name: str, namespace: str = "batuta-system") -> Json:
    """One object of a release."""
    return by_key(manifests(release_of(values, namespace=namespace)))[kind, namespace, name]


def operator_config_of(values: Mapping[str, Any], namespace: str = "batuta-system") -> str:
    """The file that the operator of a release reads."""
    name = f"{values.get('fullnameOverride', 'batuta')}-config"
    text: str = installed("ConfigMap", values, name, namespace)["data"]["config.yaml"]
    return text


def alert_groups(ours: str) -> list[Json]:
    """The chart's alerts for an installation that Prometheus knows by these labels."""
    text = (CHART / "rules" / "alerts.yaml").read_text()
    groups: list[Json] = yaml.safe_load(text.replace("__name__", "batuta").replace("__ours__", ours))["groups"]
    return groups


def alerts(ours: str) -> list[Json]:
    return [rule for group in alert_groups(ours) for rule in group["rules"]]


def rights_of(values: Mapping[str, Any], namespace: str) -> list[Json]:
    """The accounts, roles and bindings of a release."""
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    return [one for one in manifests(release_of(values, namespace=namespace)) if one["kind"] in kinds]


def tls_objects_of(values: Mapping[str, Any], namespace: str) -> list[Json]:
    """The Secret and the ConfigMap in which operators of a release share their certificate."""
    objects = manifests(release_of(values, namespace=namespace))
    return [one for one in objects if one["kind"] == "Secret" or one["metadata"]["name"].endswith("-ca")]


def policies_of(values: Mapping[str, Any], namespace: str) -> list[Json]:
    """The admission policies of a release."""
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    return [one for one in manifests(release_of(values, namespace=namespace)) if one["kind"] in kinds]


class Helm:
    """The real program, without a cluster."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._rendered: dict[str, subprocess.CompletedProcess[str]] = {}

    def lint(self, values: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        return self._run("lint", "--strict", "--kube-version", KUBE_VERSION, CHART, "--values", self._file(values))

    def render(
        self,
        values: Mapping[str, Any],
        name: str = "batuta",
        namespace: str = "batuta-system",
        *words: str,
        chart: Path = CHART,
    ) -> subprocess.CompletedProcess[str]:
        asked = json.dumps([values, name, namespace, words, str(chart)])
        if asked not in self._rendered:
            where = ("--namespace", namespace, "--kube-version", KUBE_VERSION)
            done = self._run("template", name, chart, *where, "--values", self._file(values), *words)
            self._rendered[asked] = done
        return self._rendered[asked]

    def objects(
        self,
        values: Mapping[str, Any],
        name: str = "batuta",
        namespace: str = "batuta-system",
        *words: str,
        chart: Path = CHART,
    ) -> list[Json]:
        done = self.render(values, name, namespace, *words, chart=chart)
        assert done.returncode == 0, done.stderr
        return [found for found in yaml.load_all(done.stdout, yaml.CSafeLoader) if found is not None]

    def install(self, values: Mapping[str, Any], name: str, namespace: str, kubeconfig: Path) -> None:
        """Installs the chart on a cluster, or upgrades it there."""
        place = ("--namespace", namespace, "--kubeconfig", kubeconfig, "--values", self._file(values))
        done = self._run("upgrade", "--install", name, CHART, "--skip-crds", *place)
        assert done.returncode == 0, done.stderr

    def _file(self, values: Mapping[str, Any]) -> Path:
        path = self._folder / "values.json"
        path.write_text(json.dumps(values))
        return path

    def _run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(self._program), *map(str, words)]
        homes = {f"HELM_{kind}_HOME": str(self._folder) for kind in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=homes | {"HOME": str(self._folder)}
        )


def by_key(objects: list[Json]) -> dict[Key, Json]:
    """Objects by kind, namespace and name; none may be there twice."""
    found = {(one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects)
    return found


def comparable(manifest: Json) -> Json:
    """What both ways of installing must agree on: all but who manages it and how a text is spelt."""
    plain: Json = json.loads(json.dumps(manifest))
    _drop_manager(plain["metadata"])
    if plain["kind"] == "ConfigMap" and "config.yaml" in plain.get("data", {}):
        # As the operator reads it: what a file leaves out has its default.
        config = OperatorConfig.model_validate(yaml.safe_load(plain["data"].pop("config.yaml")))
        plain["config"] = config.model_dump(mode="json")
    if plain["kind"] in ("Deployment", "DaemonSet"):
        template = plain["spec"]["template"]["metadata"]
        _drop_manager(template)
    if plain["kind"] == "Deployment":
        checksum = template["annotations"].pop("checksum/config")
        assert len(checksum) == 64
    return plain


def _drop_manager(metadata: Json) -> None:
    for label in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
        metadata["labels"].pop(label, None)
