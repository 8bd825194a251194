"""A server of root's for all users of this machine, and what they do with it, each in a process of their own."""

import json
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batuta.client.client import Client
from batuta.client.errors import ApiError
from tests.support.server_process import ServerProcess, fork_server

ANA, BEN = "games", "daemon"  # accounts that every Linux has, and that run nothing
WITHIN_S = 60.0


@dataclass
class Machine:
    """One server for all users, and its folders."""

    folder: Path
    server: ServerProcess | None = None
    state: Path = field(init=False)
    area: Path = field(init=False)
    socket: Path = field(init=False)

    def __post_init__(self) -> None:
        self.state, self.area = self.folder / "state", self.folder / "jobs"
        self.socket = self.folder / "run" / "batuta.sock"

    def start(self, **options: Any) -> None:
        usual = {"unix_socket": str(self.socket), "job_files": str(self.area)}
        self.server = fork_server().start(self.state, **(usual | options))
        self.server.wait_ready()

    def client(self) -> Client:
        return Client(server=f"unix://{self.socket}", token="")

    def as_user(self, user: str, do: Callable[[Client], Any]) -> Any:
        """What `do` returns in a process of that user, or the status and text of the refusal."""
        with self.client() as warm:
            warm.jobs()  # what is imported late is imported now: the user may not read this Python
        account, (reader, writer) = pwd.getpwnam(user), os.pipe()
        if (pid := os.fork()) == 0:
            said: Any = "it broke"
            try:
                os.initgroups(user, account.pw_gid)
                os.setresgid(*[account.pw_gid] * 3)
                os.setresuid(*[account.pw_uid] * 3)
                os.chdir("/")
                with self.client() as client:
                    said = do(client)
            except ApiError as refusal:
                said = [refusal.status, str(refusal)]
            except BaseException as error:
                said = repr(error)
            finally:
                os.write(writer, json.dumps(said).encode())
                os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            answer = file.read()
        os.waitpid(pid, 0)
        return json.loads(answer)

    def submit(self, user: str, run: str, **more: Any) -> str:
        found = self.as_user(user, lambda client: client.submit({"run": run, **more}).id)
        assert isinstance(found, str), found
        return found

    def wait(self, job: str, state: str = "SUCCEEDED") -> None:
        with self.client() as client:
            until = "running" if state == "RUNNING" else "ended"
            now = client.wait(job, until, timeout_s=WITHIN_S)  # type: ignore[arg-type]
            assert now.state == state, (now.state, now.detail, self.log(job))

    def log(self, job: str) -> str:
        with self.client() as client:
            return "\n".join(client.logs(job))

    def story(self, job: str) -> str:
        """What became of a job, for a test that failed."""
        with self.client() as client:
            return "\n".join([*client.logs(job), str(client.job(job)), *(str(one) for one in client.job_events(job))])

    def told(self, user: str, run: str) -> str:
        """What a job of a user prints, to its end."""
        job = self.submit(user, run)
        self.wait(job)
        return self.log(job)


@contextmanager
def serving_all_users(**options: Any) -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="batuta-tenants-"))
    folder.chmod(0o755)  # other users have to get to the socket and to the job files
    found = Machine(folder)
    try:
        found.start(**options)
        yield found
    finally:
        if found.server is not None and found.server.is_alive:
            with Client(home=found.state) as client:
                client.shut_down()
            found.server.wait(60.0)
        shutil.rmtree(folder)
