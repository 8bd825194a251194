"""What a replica of a training is: Batuta's small trainer, by itself or under a launcher."""

from pathlib import Path

from tests.support.kube.api import Json
from tests.support.kube.image import PYTHON
from tests.support.torch_install import REPO, TorchInstall

TRAIN = "/opt/train.py"
_AGENT = "/opt/agent.py"
_QUICK = ["--monitor_interval=1"]
"""How often torchrun looks for members that come, and for workers that are done: every 5 s by default."""
_OF_THE_MACHINE = ("/usr", "/etc/alternatives")
"""Where Debian's torch is, and the links to the libraries that it uses."""


def alone(image: str) -> Json:
    """The trainer, which finds the others by itself."""
    return _pod(image, [PYTHON, TRAIN])


def saving_when_asked(image: str) -> Json:
    """The trainer by itself, which loses all that it has done unless it is asked for a checkpoint."""
    pod = alone(image)
    pod["containers"][0]["env"] = [{"name": "SAVES", "value": "when-asked"}]
    return pod | {"terminationGracePeriodSeconds": 60}


def under_agent(image: str) -> Json:
    """The trainer under a stand-in for torchrun, which needs no torch."""
    return _pod(image, [PYTHON, _AGENT, PYTHON, TRAIN])


def under_torchrun(image: str, torch: TorchInstall) -> Json:
    """The trainer under the real torchrun: that of the machine, by its folders in place of the image's."""
    quirks = [f"--{name.removeprefix('PET_').lower()}={value}" for name, value in torch.quirks.items()]
    pod = _pod(image, [torch.python, "-m", "torch.distributed.run", *quirks, *_QUICK, TRAIN])
    source = str(REPO / "src")
    for number, (path, target) in enumerate([*((each, each) for each in _OF_THE_MACHINE), (source, "/src")]):
        name = f"machine-{number}"
        pod["volumes"].append({"name": name, "hostPath": {"path": path}})
        mount = {"name": name, "mountPath": target, "readOnly": True}
        pod["containers"][0]["volumeMounts"].append(mount)
    env = {"PYTHONPATH": "/src", "LD_LIBRARY_PATH": "", "OMP_NUM_THREADS": "1"}
    pod["containers"][0]["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return pod


def can_have(torch: TorchInstall) -> bool:
    """Whether this torch is among what a pod can see of the machine."""
    return Path(torch.python).is_relative_to(_OF_THE_MACHINE[0])


def _pod(image: str, command: list[str]) -> Json:
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}],
        "resources": {"requests": {"cpu": "50m"}},
    }
    return {"terminationGracePeriodSeconds": 2, "containers": [container], "volumes": []}
