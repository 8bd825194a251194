"""Starts a command as the leader of a session of its own; it dies with its runner."""

from __future__ import annotations

import errno
import os

from batuta.backends.local.supervisor.light import PR_SET_PDEATHSIG, prctl, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def start(argv: list[str], env: dict[str, str], cwd: str, output: int) -> int:
    """Runs a command without input, its output in a descriptor; returns the pid once the command really runs.

    OSError says what is wrong with the command or the directory.
    """
    reader, writer = os.pipe()  # a successful exec closes the writer, a failed one writes into it
    runner = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(argv, env, cwd, output, runner)
        except OSError as problem:
            os.write(writer, f"{problem.errno or 0} {problem.filename or argv[0]}".encode()[:2048])
        finally:
            os._exit(127)
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as file:
        problem_text = file.read()
    if problem_text:
        os.waitpid(pid, 0)
        number, _, what = problem_text.partition(" ")
        raise OSError(int(number), os.strerror(int(number)), what)
    return pid


def _become(argv: list[str], env: dict[str, str], cwd: str, output: int, runner: int) -> NoReturn:
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != runner:
        os._exit(127)  # the runner was gone before the line above
    # Handlers end with exec; what Python or the runner ignores would be ignored by the command too.
    for name in ("SIGHUP", "SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir(cwd)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _exec(argv, env)


def _exec(argv: list[str], env: dict[str, str]) -> NoReturn:
    """As os.execvpe, which would first import `warnings`."""
    name = argv[0]
    if "/" in name:
        os.execve(name, argv, env)
    denied = False
    for folder in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(os.path.join(folder, name), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except PermissionError:
            denied = True
    raise OSError(errno.EACCES if denied else errno.ENOENT, "", name)
