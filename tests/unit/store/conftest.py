"""Stores of both kinds for every test that asks for one."""

from tests.support.store_places import place, server, session_server, store

__all__ = ["place", "server", "session_server", "store"]
