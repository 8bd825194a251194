"""`batuta token` and `batuta dashboard`: tokens for users, and a login link for the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from enum import StrEnum
from typing import Annotated

import typer

from batuta.cli.options import HomeOption, Output, OutputOption, argument, connect_to_server, flag, option
from batuta.cli.output import Column, format_time, is_interactive, print_json, print_stderr, print_table
from batuta.cli.verbs import CommandGroup
from batuta.client.errors import ClientError
from batuta.spec.problem import InputError
from batuta.spec.quantity import parse_duration_s

Role = StrEnum("Role", {"VIEWER": "viewer", "USER": "user", "ADMIN": "admin"})


_SHOWN = 16  # characters of a hash that are printed; `revoke` takes any prefix

app = typer.Typer(cls=CommandGroup, name="token", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def token() -> None:
    """Make, list and revoke tokens. For admins; the admin's own is in the state directory.

    Example: batuta token create --user ana --role user
    """


@app.command()
def create(
    user: Annotated[str, option("Whose jobs they will be.", names="--user -u")],
    role: Annotated[Role, option("viewer reads, user submits and changes own jobs, admin does all.")] = Role.USER,
    expires: Annotated[
        str, option("How long it is valid, as in 12h or 90d; never: until it is revoked.", "TIME")
    ] = "90d",
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Make a token. It is printed once, and cannot be shown again.

    Example: batuta token create --user ana --role user
    """
    valid_s = None if expires == "never" else parse_duration_s(expires, "--expires")
    if valid_s is not None and valid_s <= 0:
        raise InputError.of(f"--expires must be more than 0, found {expires}", fix="as in 90d, or never")
    with connect_to_server(home) as client:
        made = client.create_token(user, role.value, valid_s)
        url = client.address.url if client.address else ""
    if output is Output.JSON:
        print_json(made)
        return
    until = f"until {format_time(made.expires_s)}" if made.expires_s else "until it is revoked"
    print_stderr(f"a token for {made.user} ({made.role}), valid {until}; keep it, it is not shown again:")
    typer.echo(made.token)
    print_stderr(f"to use it: export BATUTA_SERVER={url} BATUTA_TOKEN=…")


@app.command(name="list")
def list_tokens(output: OutputOption = Output.TABLE, home: HomeOption = None) -> None:
    """List tokens by their hashes.

    Example: batuta token list
    """
    with connect_to_server(home) as client:
        found = client.tokens()
    if output is Output.JSON:
        names = ("hash", "user", "role", "created_s", "expires_s")
        print_json([{name: getattr(one, name) for name in names} for one in found])
        return
    rows = [
        (
            t.hash[:_SHOWN],
            t.user,
            t.role,
            format_time(t.created_s),
            format_time(t.expires_s) if t.expires_s else "never",
        )
        for t in found
    ]
    print_table(
        (Column("HASH"), Column("USER"), Column("ROLE"), Column("CREATED", drop=1), Column("EXPIRES", drop=2)),
        rows,
        "no tokens",
    )


@app.command()
def revoke(
    hash: Annotated[str, argument("HASH", "From batuta token list; its beginning will do.")], home: HomeOption = None
) -> None:
    """Make a token invalid at once.

    Example: batuta token revoke 3f9a1c
    """
    with connect_to_server(home) as client:
        matching = [one for one in client.tokens() if one.hash.startswith(hash)]
        if len(matching) != 1:
            found = "no token" if not matching else f"{len(matching)} tokens"
            raise ClientError(f"{found} with a hash that begins with {hash}: see batuta token list")
        client.revoke_token(matching[0].hash)
    typer.echo(f"the token of {matching[0].user} ({matching[0].role}) is revoked")


def dashboard(
    open_it: Annotated[bool, flag("--open/--no-open", "Open it in a browser, where there is one.")] = True,
    output: OutputOption = Output.TABLE,
    home: HomeOption = None,
) -> None:
    """Print a link to the dashboard, and open it.

    The link logs a browser in: once, within a minute.

    Example: batuta dashboard
    """
    with connect_to_server(home) as client:
        url = client.session_link()
    if output is Output.JSON:
        print_json({"url": url})
        return
    typer.echo(url)
    # Without a display, `webbrowser` would start a browser in the terminal.
    has_display = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if open_it and is_interactive() and has_display:
        webbrowser.open(url)
