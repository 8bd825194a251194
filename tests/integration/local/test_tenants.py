"""A server of root's with a unix socket: each job runs as the unix user who submitted it, and cannot reach others'."""

import os
import pwd
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta.client.client import Client
from batuta.client.errors import ApiError
from tests.support.server_process import fork_server
from tests.support.tenant_machine import ANA, BEN, WITHIN_S, Machine, serving_all_users

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts jobs as other users")
TRAINER = """
    import os, sys, time
    from batuta import sdk
    path = os.path.join(os.environ["BATUTA_CHECKPOINT_DIR"], "step")
    step = int(open(path).read()) if os.path.exists(path) else 0
    sdk.checkpoint_requested()  # before it says that it starts: from here on a request is heard
    print("starts at", step, "as", os.getuid(), flush=True)
    while True:
        step += 1
        sdk.report(step=step, total_steps=100000)
        if sdk.checkpoint_requested():
            if os.environ["SKYPILOT_NODE_RANK"] == "0":
                with open(path, "w") as file:
                    file.write(str(step))
                sdk.checkpointed(path, step=step)  # by the one who has saved: the first answer ends the run
        time.sleep(0.02)
"""


@pytest.fixture
def machine() -> Iterator[Machine]:
    with serving_all_users() as found:
        yield found


def test_each_job_runs_as_the_user_who_submitted_it(machine: Machine) -> None:
    asked = (
        "id -u; id -g; id -G; echo $HOME $USER $LOGNAME $SHELL; echo kept > kept; stat -c '%U %a' . kept > /dev/stderr"
    )
    for user in (ANA, BEN):
        account = pwd.getpwnam(user)
        groups = " ".join(map(str, os.getgrouplist(user, account.pw_gid)))
        lines = machine.told(user, f"umask 077; {asked}").splitlines()
        assert lines[:3] == [str(account.pw_uid), str(account.pw_gid), groups]
        assert lines[3] == f"{account.pw_dir} {user} {user} {account.pw_shell}"
        assert lines[4:6] == [f"{user} 700", f"{user} 600"]
    assert machine.told("root", "id -u").strip() == "0"


def test_the_runner_writes_into_folders_of_the_user_as_that_user(machine: Machine) -> None:
    """As root it could be led elsewhere by a link there."""
    asked = "until ls $BATUTA_CONTROL/* 2> /dev/null; do sleep 0.1; done; stat -c %U $BATUTA_CONTROL/*"
    said = machine.told(ANA, f"cd /; {asked}").split()
    assert said[1:] == [ANA]
    assert said[0].endswith("checkpoint-request.spare")


def test_mounts_of_a_task_are_made_as_its_user(machine: Machine) -> None:
    """Root's would lie over files that programs of root's trust, whoever starts them."""
    (machine.folder / "shown").write_text("shown")
    (machine.folder / "shown").chmod(0o644)
    run = "cat /mnt/batuta-test; echo; readlink /proc/self/ns/user; id -u"
    job = machine.submit(ANA, run, file_mounts={"/mnt/batuta-test": str(machine.folder / "shown")})
    machine.wait(job)
    text, namespace, uid = machine.log(job).split()
    assert (text, uid) == ("shown", str(pwd.getpwnam(ANA).pw_uid))
    assert namespace != os.readlink("/proc/self/ns/user")


def test_a_job_gets_to_its_virtual_gpus_and_to_its_share(machine: Machine) -> None:
    look = "import ctypes; n = ctypes.c_int(); c = ctypes.CDLL('libcuda.so.1'); print(c.cuInit(0)); "
    look += "c.cuDeviceGetCount(ctypes.byref(n)); print(n.value)"
    shared = "cat $BATUTA_SHARE_LIMITS > /dev/null && echo limits; test -w $BATUTA_SHARE_LIMITS || echo kept; "
    run = f'{shared} /usr/bin/python3 -c "{look}"; test -r $LD_PRELOAD && echo library'
    job = machine.submit(ANA, run, resources={"accelerators": "V100:0.5"})
    machine.wait(job)
    assert machine.log(job).splitlines() == ["limits", "kept", "0", "1", "library"]


def test_a_caller_at_the_socket_is_who_the_kernel_says(machine: Machine) -> None:
    session = "/session"
    assert machine.as_user(ANA, lambda client: client._transport.json("GET", session)) == {"user": ANA, "role": "user"}
    with machine.client() as client:
        assert client._transport.json("GET", session) == {"user": "root", "role": "admin"}
    status, said = machine.as_user(ANA, lambda client: client.create_token(ANA, "admin"))
    assert (status, "admin" in said) == (403, True)


def test_a_job_cannot_reach_what_is_of_the_server_or_of_another_user(machine: Machine) -> None:
    victim = machine.submit(
        BEN, "echo ben-prints; echo ben-saves > $BATUTA_CHECKPOINT_DIR/x; sleep 1000", envs={"S": "ben-env"}
    )
    machine.wait(victim, "RUNNING")
    own = machine.area / victim
    give_up = time.monotonic() + WITHIN_S
    while not (own / "checkpoints" / "x").exists():
        assert time.monotonic() < give_up
        time.sleep(0.05)
    pids = pids_of(machine, victim)
    assert pids
    targets = [
        *(machine.state / name for name in ("token", "journal.db", "server.log", "mark")),
        *(machine.state / "jobs" / victim / "logs" / "rank-0.log", own / "checkpoints" / "x"),
        *(own / "runs" / "0" / "0" / "run.sh", own / "reports", own / "work", own / "runs" / "0" / "control"),
        *(Path(f"/proc/{pid}/environ") for pid in pids),
    ]
    tried = "".join(f"cat {path} && echo got-it; ls {path}/ && echo got-it; " for path in targets)
    tried += "".join(f"kill -9 {pid} && echo got-it; " for pid in pids)
    tried += "".join(f"cat /proc/$PPID/{name} && echo got-it; " for name in ("environ", "mem", "maps"))
    tried += "ls -l /proc/$PPID/fd/ && echo got-it; kill -9 $PPID && echo got-it; kill -STOP $PPID && echo got-it; "
    tried += f"ls {machine.area} && echo got-it; echo x > {machine.area}/x && echo got-it; echo done"
    said = machine.told(ANA, tried)
    assert "done" in said
    assert "got-it" not in said
    for text in ("ben-prints", "ben-saves", "ben-env"):
        assert text not in said
    for refused in (
        lambda client: list(client.logs(victim)),
        lambda client: client.cancel(victim).id,
        lambda client: client.result(victim),
        lambda client: len(client.progress(victim)),
        lambda client: client.submit(like=victim).id,
        lambda client: client.resize(victim, nodes=2).id,
        lambda client: client.park(victim).id,
        lambda client: client._transport.json("PATCH", f"/jobs/{victim}", json={"priority": -1}),
        lambda client: client._transport.send("GET", f"/jobs/{victim}/task").text,
        lambda client: client._transport.json("POST", "/nodes/node-0/drain"),
        lambda client: client._transport.json("PUT", "/policy", json={"name": "fifo"}),
        lambda client: client._transport.json("GET", "/audit"),
        lambda client: client._transport.json("GET", "/tokens"),
        lambda client: client.shut_down(),
    ):
        assert machine.as_user(ANA, refused)[0] == 403
    assert machine.as_user(BEN, lambda client: list(client.logs(victim))[:1]) == ["ben-prints"]
    assert machine.as_user(BEN, lambda client: client.cancel(victim).id) == victim


def pids_of(machine: Machine, job: str) -> set[int]:
    """The processes of a job. Other servers on this computer have jobs of the same name."""
    own = f"BATUTA_CHECKPOINT_DIR={machine.area / job}/".encode()
    return {int(path.name) for path in Path("/proc").glob("[0-9]*") if own in _environ(path)}


def _environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_what_a_job_puts_into_its_folders_leads_the_server_nowhere(machine: Machine) -> None:
    secret = machine.folder / "secret"
    secret.write_text('{"step": 7, "total_steps": 9}\n')
    secret.chmod(0o600)
    links = f"ln -s {secret} $BATUTA_PROGRESS; ln -s {secret} $BATUTA_CONTROL/result.json; "
    links += f"ln -sf {secret} $BATUTA_CONTROL/checkpoint-request.spare; rm -f $BATUTA_CONTROL/checkpoint-request; "
    links += f"ln -s {secret} $BATUTA_CONTROL/checkpoint-request; "
    job = machine.submit(
        ANA,
        f"{links} trap 'exit 0' USR1; for i in $(seq 600); do sleep 0.1; done",
        resources={"accelerators": "1"},
        elastic={"min_nodes": 1, "max_nodes": 2, "checkpoint": "on-signal", "grace": "2s"},
    )
    machine.wait(job, "RUNNING")
    time.sleep(1.0)
    machine.as_user(ANA, lambda client: client.park(job).id)  # so that a checkpoint is requested, at which it ends
    with machine.client() as client:
        client.wait(job, timeout_s=WITHIN_S)
        assert client.progress(job) == ()
        assert client.job(job).progress is None
        with pytest.raises(ApiError):
            client.result(job)
    assert secret.read_text() == '{"step": 7, "total_steps": 9}\n'
    assert secret.stat().st_uid == 0


def test_a_task_cannot_mount_what_its_user_cannot_reach(machine: Machine) -> None:
    closed = machine.folder / "closed"
    closed.mkdir(mode=0o700)
    (closed / "open").write_text("roots")
    job = machine.submit(ANA, "cat /mnt/stolen || cat /etc/shadow", file_mounts={"/mnt/stolen": str(closed / "open")})
    with machine.client() as client:
        assert client.wait(job, timeout_s=WITHIN_S).state in ("FAILED", "FAILED_SETUP", "CANNOT_START")
    assert "roots" not in machine.log(job)
    status, said = machine.as_user(
        ANA, lambda client: client.submit({"run": "id", "resources": {"image_id": "docker:x"}}).id
    )
    assert (status, "container" in said) == (422, True)


def test_a_resize_keeps_what_the_job_has_saved_and_a_killed_server_adopts_it(machine: Machine) -> None:
    lines = "\n".join(line[4:] for line in TRAINER.strip("\n").splitlines())
    job = machine.submit(
        ANA,
        # A file for each rank: one that both write is empty for a moment, and a trainer that reads it then ends.
        f"own=train-$SKYPILOT_NODE_RANK.py; cat > $own <<'EOF'\n{lines}\nEOF\nexec /usr/bin/python3 $own",
        resources={"accelerators": "1"},
        elastic={"min_nodes": 1, "max_nodes": 2, "checkpoint": "on-signal", "grace": "20s"},
        num_nodes=1,
    )
    machine.wait(job, "RUNNING")
    uid = pwd.getpwnam(ANA).pw_uid
    give_up = time.monotonic() + WITHIN_S
    while "starts at 0" not in machine.log(job):  # before that it has no handler, and could not save
        assert time.monotonic() < give_up, machine.log(job)
        time.sleep(0.1)
    with machine.client() as client:
        nodes = 3 - client.job(job).gpus.now
    assert machine.as_user(ANA, lambda client: client.resize(job, nodes=nodes).id) == job
    saved = machine.area / job / "checkpoints" / "step"
    give_up = time.monotonic() + WITHIN_S
    # Each rank of a job of two says that it starts at 0: only a start at what was saved is one after the resize.
    while not saved.exists() or f"starts at {saved.read_text()} as {uid}" not in machine.log(job):
        assert time.monotonic() < give_up, machine.story(job)
        time.sleep(0.2)
    assert saved.stat().st_uid == uid
    before = pids_of(machine, job)
    assert before
    assert machine.server is not None
    machine.server.kill()
    machine.start()
    with machine.client() as client:
        seen = client.job(job).progress
        assert before == pids_of(machine, job)
        while (now := client.job(job)).progress is None or now.progress == seen:
            assert time.monotonic() < give_up + WITHIN_S
            time.sleep(0.2)
        assert now.state == "RUNNING"
    machine.as_user(ANA, lambda client: client.cancel(job).id)


def test_a_token_is_for_an_account_of_this_machine(machine: Machine) -> None:
    with machine.client() as client:
        made = client.create_token("no-such-account", "admin").token
        known = client.create_token(ANA, "user").token
    assert machine.server is not None
    url = machine.server.wait_ready()
    with Client(server=url, token=made) as forged, pytest.raises(ApiError) as refusal:
        forged.submit({"run": "id"})
    assert refusal.value.status == 403
    assert "no-such-account has no unix account" in str(refusal.value)
    with Client(server=url, token=known) as client:
        job = client.submit({"run": "id -un"})
        client.wait(job, timeout_s=WITHIN_S)
        assert list(client.logs(job)) == [ANA]
    with Client(server=url, token="") as client, pytest.raises(ApiError) as refusal:
        client.jobs()
    assert refusal.value.status == 401


def test_a_server_of_roots_without_a_socket_takes_jobs_of_root_alone(machine: Machine) -> None:
    """Whoever got a token of such a server had root."""
    alone = fork_server().start(machine.folder / "alone", jobs_run_as_me=False)
    url = alone.wait_ready()
    with alone.client() as client:
        token = client.create_token(ANA, "admin").token
        with (
            Client(server=url, token=token) as other,
            pytest.raises(ApiError, match="all jobs of this server") as refused,
        ):
            other.submit({"run": "id"})
        assert refused.value.status == 403
        job = client.submit({"run": "id -u"})
        assert client.wait(job, timeout_s=WITHIN_S).state == "SUCCEEDED"
    alone.end()


def test_jobs_of_users_are_not_started_by_a_server_that_would_run_them_as_root(machine: Machine) -> None:
    machine.told(ANA, "true")
    assert machine.server is not None
    machine.server.end()
    assert not machine.socket.exists()
    single = fork_server().start(machine.state)
    assert single.wait(60.0) != 0
    assert "run as their users" in single.last_words()
    machine.start()


def test_a_socket_that_listens_is_not_taken(machine: Machine) -> None:
    other = fork_server().start(
        machine.folder / "other", unix_socket=str(machine.socket), job_files=str(machine.folder / "more")
    )
    assert other.wait(60.0) != 0
    assert "another server listens there" in other.last_words()
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(machine.socket))
