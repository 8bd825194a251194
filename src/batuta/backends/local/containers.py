"""Containers for replicas whose task names an image: how a runtime makes, runs, stops and removes them.

A container is a file system here, with the network, the shared memory and the GPUs of the machine, as it is
with SkyPilot. Each replica has one container for each of its runs. `setup` and `run` are two starts of it, so
that `run` finds what `setup` has installed; a new run begins with the image again. Inside, the first process
(`_STEP`) starts the script of the step and hands its exit code on.

The runner supervises the runtime's client as it does any command. What runs inside carries `BATUTA_RUN`, wherever the
runtime has put it in the process tree: by this mark it is asked for checkpoints, asked to end, and found when its
runner was killed (supervisor/process_tree.py, processes.py). Last of all the runtime removes the container by its name.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from batuta.backends.local.mounts import place_of
from batuta.backends.local.runner_protocol import ReplicaSpec
from batuta.spec.skypilot_keys import ContainerSupport

_PROBE_S = 20.0
_ASKED_AGAIN_S = 10.0
_CLIENT_NAMES = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME")
_CLIENT_PREFIXES = ("CONTAINERS_", "REGISTRY_AUTH_", "DOCKER_", "APPTAINER_", "SINGULARITY_", "STORAGE_")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY")
_PASSED_PREFIXES = ("NCCL_",)
_PASSED = ("TZ", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_LOGIN = ("SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD", "SKYPILOT_DOCKER_SERVER")
STEP_SCRIPT, STEP, LOGIN = "step.sh", "step", "config.json"
"""Files of a replica's run: the container's command, which step it shall do, a login at a registry."""

_STEP = """\
cd {cwd} || exit 1
read -r step < {step}
if [ "$step" = setup ]; then
{setup}
fi
shell=$(command -v bash || echo /bin/sh)
stopped=
trap 'stopped=1' TERM
"$shell" {folder}/"$step.sh" &
child=$!
wait "$child"; code=$?
while [ "$code" -gt 128 ] && kill -0 "$child" 2>/dev/null; do
  wait "$child"; code=$?
done
if [ "$code" -gt 128 ]; then
  wait "$child" 2>/dev/null; again=$?
  [ "$again" = 127 ] || code=$again
fi
if [ -n "$stopped" ]; then
  while kill -0 -1 2>/dev/null; do sleep 0.1; done
fi
exit "$code"
"""
"""The first process of a container. Its end is the end of all that runs inside; when it is asked to end it
waits for the others, of which one may still be writing its checkpoint. Of a signal, `wait` returns early: it
asks again, and is told 127 if the child's own code was told already."""


@dataclass(frozen=True, slots=True)
class Container:
    """What one run of one replica needs of its container."""

    run_id: str
    image: str
    folder: Path  # of the replica's run: it has the scripts of its steps
    mounts: Sequence[tuple[str, str]] = ()  # what the machine has at the first path is seen at the second
    nvidia: bool = False
    """Whether it gets the machine's NVIDIA GPUs; CUDA_VISIBLE_DEVICES says which of them are its own."""
    most_processes: int | None = None
    most_memory_bytes: int | None = None

    @property
    def name(self) -> str:
        return f"batuta-{self.run_id}"

    @property
    def command(self) -> list[str]:
        return ["/bin/sh", str(self.folder / STEP_SCRIPT)]

    def mounted(self, option: str) -> list[str]:
        """The words that mount what it is to see. ValueError for a path that cannot be said so."""
        if any(":" in path for pair in self.mounts for path in pair):
            raise ValueError(f"a container cannot be given {self.mounts}: there is a colon in a path")
        return [word for source, target in self.mounts for word in (option, f"{source}:{target}")]


@dataclass(frozen=True, slots=True)
class DockerCompatible:
    """podman, or a docker client with its engine: argument lists, none of which holds a secret."""

    path: str
    name: str
    user: str = "0:0"  # with podman, root inside is the server's user outside; with docker it is that user by number

    def create(self, container: Container) -> list[str]:
        """Fetches the image if need be, and makes the container."""
        words = [self.path, "create", "--name", container.name]
        words += ["--network", "host", "--ipc", "host", "--user", self.user, "--log-driver", "none"]
        words += ["--security-opt", "label=disable", "--env", f"BATUTA_RUN={container.run_id}"]
        if container.nvidia:
            words += ["--gpus", "all"] if self.name == "docker" else ["--device", "nvidia.com/gpu=all"]
        # The engine makes the control groups of its containers. Without root it cannot set limits everywhere.
        if container.most_processes is not None:
            words += ["--pids-limit", str(container.most_processes)]
        if container.most_memory_bytes is not None:
            words += ["--memory", f"{container.most_memory_bytes}b"]
        shell, *arguments = container.command
        return [*words, *container.mounted("--volume"), "--entrypoint", shell, container.image, *arguments]

    def start(self, container: Container) -> list[str]:
        """Runs the container's command once, with its output and its exit code, and waits for its end."""
        return [self.path, "start", "--attach", container.name]

    def remove(self, container: Container) -> list[str]:
        """Ends what is left of it and removes it; does nothing when it is gone."""
        at_once = ["--time", "0", "--ignore"] if self.name == "podman" else []
        return [self.path, "rm", "--force", *at_once, container.name]

    def home(self, container: Container) -> str:
        """What `~` is inside."""
        return "/root" if self.user == "0:0" else str(container.folder)


@dataclass(frozen=True, slots=True)
class Apptainer:
    """apptainer, or singularity as it was called before, with the same methods. The container is a folder."""

    path: str
    name: str = "apptainer"

    def create(self, container: Container) -> list[str]:
        return [self.path, "build", "--force", "--sandbox", self._root(container), f"docker://{container.image}"]

    def start(self, container: Container) -> list[str]:
        # With a process namespace of its own: the end of its first process is the end of all.
        words = [self.path, "exec", "--writable", "--pid", "--no-home", "--cleanenv"]
        words += ["--env", f"BATUTA_RUN={container.run_id}", *(["--nv"] if container.nvidia else [])]
        return [*words, *container.mounted("--bind"), self._root(container), *container.command]

    def remove(self, container: Container) -> list[str]:
        return ["/bin/rm", "-rf", self._root(container)]

    def home(self, container: Container) -> str:
        return str(container.folder)

    def _root(self, container: Container) -> str:
        return str(container.folder / "rootfs")


ContainerRuntime: TypeAlias = DockerCompatible | Apptainer


@dataclass(slots=True)
class ContainerRuntimes:
    """The runtime of this machine that can be used, looked for when it is first needed. For any thread."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    virtual: bool = False  # whether the GPUs are virtual, which no container sees
    _found: ContainerRuntime | None = None
    _unusable: list[str] = field(default_factory=list)
    _asked_s: float = -_ASKED_AGAIN_S
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def find(self) -> ContainerRuntime | None:
        """podman, docker or apptainer, the first that answers; where none does, it looks again later."""
        with self._asking:
            if self._found is None and time.monotonic() - self._asked_s >= _ASKED_AGAIN_S:
                self._unusable = []
                self._found = self._ask()
                self._asked_s = time.monotonic()
            return self._found

    def rules(self) -> ContainerSupport:
        """Whether a task with an image can be run here, for the user who submits one."""
        found = self.find()
        if found is None:
            seen = "; ".join(self._unusable) or "neither podman nor docker nor apptainer is on the server's PATH"
            fix = "install podman on the server's machine, or remove image_id to run on the machine itself"
            return ContainerSupport(f"it needs a container runtime, and there is none: {seen}", fix)
        notes = [f"it runs in a container of {found.name}"]
        if self.virtual:
            notes.append("a container sees no virtual GPUs: CUDA_VISIBLE_DEVICES has their numbers")
        return ContainerSupport(notes=tuple(notes))

    @property
    def client_env(self) -> dict[str, str]:
        """What a runtime's client gets of the server's environment."""
        return {
            name: value
            for name, value in self.environ.items()
            if name in _CLIENT_NAMES or name.startswith(_CLIENT_PREFIXES) or name.upper() in _PROXIES
        }

    def _ask(self) -> ContainerRuntime | None:
        search = self.environ.get("PATH")
        for name, question in _QUESTIONS.items():
            path = shutil.which(name, path=search)
            if path is None:
                continue
            answer = self._answer([path, *question])
            if answer is None and name in ("apptainer", "singularity"):
                return Apptainer(path, name)
            if answer is None:
                by_number = name == "docker" and os.geteuid() != 0
                return DockerCompatible(path, name, f"{os.geteuid()}:{os.getegid()}" if by_number else "0:0")
            self._unusable.append(f"{name} does not work ({answer})")
        return None

    def _answer(self, argv: Sequence[str]) -> str | None:
        """What is wrong with a runtime; None when it can be used."""
        try:
            done = subprocess.run(
                argv, env=self.client_env, capture_output=True, timeout=_PROBE_S, check=False, text=True
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            return str(problem)[:200]
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return None if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")[:200]


_QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "podman": ("info", "--format", "{{.Store.GraphDriverName}}"),
    # The client alone answers without --format: it has to be the engine that does.
    "docker": ("version", "--format", "{{.Server.Version}}"),
    "apptainer": ("version",),
    "singularity": ("version",),
}
"""The runtimes in the order of liking, and what only a usable one answers."""


def container_env(inherited: Mapping[str, str]) -> dict[str, str]:
    """What of a job's usual environment a container gets: not the paths of this machine's programs."""
    return {
        name: value
        for name, value in inherited.items()
        if name in _PASSED or name.upper() in _PROXIES or name.startswith(_PASSED_PREFIXES)
    }


def in_container(
    spec: ReplicaSpec, runtime: ContainerRuntime, container: Container, client_env: Mapping[str, str]
) -> ReplicaSpec:
    """The same replica in a container: its commands call the runtime's client.

    Setup makes the container, and runs the task's setup in it if there is one. What runs inside has the
    task's environment, from a file that other users cannot read.
    """
    assert isinstance(spec.run, str), "the text of a script"
    assert spec.setup is None or isinstance(spec.setup, str), "the text of a script"
    folder, scripts = container.folder, {"run": spec.run, **({} if spec.setup is None else {"setup": spec.setup})}
    inside = {**spec.env, "BATUTA_RUN": container.run_id, "HOME": runtime.home(container)}
    step = _exports(inside) + _STEP.format(
        cwd=shlex.quote(str(spec.cwd)),
        step=shlex.quote(str(folder / STEP)),
        setup=_exports(spec.setup_env) or ":",
        folder=shlex.quote(str(folder)),
    )
    files = {STEP_SCRIPT: step, **{f"{name}.sh": text.rstrip("\n") + "\n" for name, text in scripts.items()}}
    client = dict(client_env)
    if login := _login(spec.env):
        files[LOGIN] = login
        # podman reads the first, docker the second, apptainer the others.
        client |= {"REGISTRY_AUTH_FILE": str(folder / LOGIN), "DOCKER_CONFIG": str(folder)}
        client |= {f"APPTAINER_DOCKER_{name}": spec.env[f"SKYPILOT_DOCKER_{name}"] for name in ("USERNAME", "PASSWORD")}
    make = f"{shlex.join(runtime.create(container))} > /dev/null"
    set_up = make if spec.setup is None else f"{make} && {_run_step(runtime, container, 'setup')}"
    return replace(
        spec,
        setup=["/bin/sh", "-c", set_up],
        run=["/bin/sh", "-c", _run_step(runtime, container, "run")],
        cleanup=["/bin/sh", "-c", f"{shlex.join(runtime.remove(container))} > /dev/null"],
        files=files,
        env=client,
        setup_env={},
        cwd=Path("/"),
    )


def _run_step(runtime: ContainerRuntime, container: Container, step: str) -> str:
    file, start = shlex.quote(str(container.folder / STEP)), shlex.join(runtime.start(container))
    return f"echo {step} > {file} && exec {start}"


def _exports(env: Mapping[str, str | None]) -> str:
    """The variables for a shell; one without a value is not set."""
    return "".join(
        f"unset {name}\n" if value is None else f"export {name}={shlex.quote(value)}\n"
        for name, value in env.items()
        if name.isidentifier()
    )


def _login(env: Mapping[str, str]) -> str:
    """A login at a private registry, as SkyPilot has it in variables; empty for none."""
    user, password, server = (env.get(name, "") for name in _LOGIN)
    if not (user and password and server):
        return ""
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    return json.dumps({"auths": {server: {"auth": auth}}})


def mounts_of(
    folders: Sequence[Path], file_mounts: Sequence[tuple[str, str]], cwd: Path, home: str
) -> list[tuple[str, str]]:
    """What a container sees: folders where they are, file mounts (target, source) where they are wanted."""
    found: dict[str, str] = {}
    for folder in folders:
        if not any(folder.is_relative_to(other) for other in found):
            found[str(folder)] = str(folder)
    for target, source in file_mounts:
        found[place_of(target, cwd, home)] = source
    return [(source, target) for target, source in found.items()]
