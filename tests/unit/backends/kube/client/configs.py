"""Kubeconfig files for tests, with what each test is about and no more."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batuta.backends.kube.client.access import Access, find_access

SERVER = "http://127.0.0.1:8001"

EXPIRED = """\
-----BEGIN CERTIFICATE-----
MIIBAzCBqgIBATAKBggqhkjOPQQDAjAOMQwwCgYDVQQDDANvbGQwHhcNMjAwMTAx
MDAwMDAwWhcNMjAwMTAyMDMwNDAwWjAOMQwwCgYDVQQDDANvbGQwWTATBgcqhkjO
PQIBBggqhkjOPQMBBwNCAAS7eJ4YFMl2cabvRlyL2Fpc/16Pum/YECbNCi87W9n1
YBrtisp0y07VLMGu5O+H/GWSnz5nGi4AkmoAVlfP7wsfMAoGCCqGSM49BAMCA0gA
MEUCIQD60WXXkp/hJxaF+KyKKv8lpll8G3n7rDDRHflA/VRM4AIgU6sOcdGfh0Ir
BsKv9h7pCvu4+cQ2GnqJDneX3RlhNjE=
-----END CERTIFICATE-----
"""
"""A certificate that was good until 2020-01-02 03:04 UTC."""
FAR = """\
-----BEGIN CERTIFICATE-----
MIIBBTCBrAIBAjAKBggqhkjOPQQDAjAOMQwwCgYDVQQDDANvbGQwIBcNMjAwMTAx
MDAwMDAwWhgPMjA2MDAxMDIwMzA0MDVaMA4xDDAKBgNVBAMMA29sZDBZMBMGByqG
SM49AgEGCCqGSM49AwEHA0IABLt4nhgUyXZxpu9GXIvYWlz/Xo+6b9gQJs0KLztb
2fVgGu2KynTLTtUswa7k74f8ZZKfPmcaLgCSagBWV8/vCx8wCgYIKoZIzj0EAwID
SAAwRQIgf8hpU37YSmUAhWbrXocOizOkFxtVSRf3uaXMRn5MQvkCIQCVfSZxfU7b
PyZMT07Bzl2kKS3ZL3hIm+GEP79qfn+deg==
-----END CERTIFICATE-----
"""
"""A certificate that is good until 2060-01-02 03:04:05 UTC, which takes another way to write a year."""


def config(
    user: Mapping[str, Any] | None = None, cluster: Mapping[str, Any] | None = None, name: str = "one"
) -> dict[str, Any]:
    """A kubeconfig with one context of this name."""
    context = {"cluster": name, "user": name, "namespace": f"{name}-space"}
    return {
        "clusters": [{"name": name, "cluster": {"server": SERVER, **(cluster or {})}}],
        "users": [{"name": name, "user": dict(user or {})}],
        "contexts": [{"name": name, "context": context}],
        "current-context": name,
    }


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def find(*arguments: Any, **more: Any) -> Access:
    return asyncio.run(find_access(*arguments, **more))


def header(access: Access) -> str:
    """The Authorization header that a request would have now."""

    async def ask() -> str:
        return await access.credentials.authorization()

    return asyncio.run(ask())
