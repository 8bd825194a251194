"""`batuta completion`: the Tab key completes verbs, options, jobs, nodes, queues and policies."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from batuta.cli.options import argument
from batuta.cli.verbs import CommandGroup
from batuta.spec.problem import InputError

VARIABLE = "_BATUTA_COMPLETE"

Shell = StrEnum("Shell", {"BASH": "bash", "ZSH": "zsh", "FISH": "fish"})


app = typer.Typer(cls=CommandGroup, name="completion", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def completion() -> None:
    """Complete with the Tab key: print a script, or install it.

    Verbs, options, ids and names of jobs, nodes, queues and policies are completed.

    Examples:
      batuta completion install
      source <(batuta completion bash)
    """


def _add_script(shell: Shell, example: str) -> None:
    def script() -> None:
        from typer.completion import get_completion_script  # type: ignore[attr-defined]

        typer.echo(get_completion_script(prog_name="batuta", complete_var=VARIABLE, shell=shell.value))

    app.command(name=shell.value, help=f"Print the script for {shell.value}.\n\nExample: {example}")(script)


_add_script(Shell.BASH, "source <(batuta completion bash)")
_add_script(Shell.ZSH, "source <(batuta completion zsh)")
_add_script(Shell.FISH, "batuta completion fish | source")


@app.command()
def install(shell: Annotated[Shell | None, argument("[SHELL]", "Default: the one you use.")] = None) -> None:
    """Write the script to where the shell looks for it, and load it from the shell's own start file.

    bash: ~/.bash_completions/batuta.sh, sourced by ~/.bashrc; zsh: ~/.zfunc/_batuta, found by ~/.zshrc;
    fish: ~/.config/fish/completions/batuta.fish.

    Example: batuta completion install zsh
    """
    from typer.completion import install as write  # type: ignore[attr-defined]

    chosen = shell.value if shell is not None else _own_shell()
    if chosen not in set(Shell):
        raise InputError.of(f"which shell? {chosen or 'yours'} is not known", fix="bash, zsh or fish")
    _, path = write(shell=chosen, prog_name="batuta", complete_var=VARIABLE)
    typer.echo(f"written to {path}; a new {chosen} will use it")


def _own_shell() -> str:
    """Return the shell that runs `batuta`, else the login shell of the user."""
    import shellingham  # type: ignore[import-untyped]

    try:
        return str(shellingham.detect_shell()[0])
    except shellingham.ShellDetectionFailure:
        return Path(os.environ.get("SHELL", "")).name
