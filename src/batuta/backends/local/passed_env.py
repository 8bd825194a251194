"""What jobs inherit of the server's environment: what programs need, and nothing that may be a secret.

Whoever starts a server may have tokens and passwords in the environment; jobs of others shall not find them
in theirs. This keeps honest jobs from such secrets, and what they log; it is no wall against a job that looks
for them, since it runs as the same user as the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ"),
        *("TMPDIR", "TMP", "TEMP", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    )
)
_PROXIES = frozenset(name for name in _NAMES if name.endswith("_PROXY"))
_PREFIXES = ("LC_", "PYTHON", "CUDA", "NVIDIA", "NCCL_")


def passed_env(environ: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """The part of an environment that jobs inherit; `also` names what somebody wants passed on beside it."""
    wanted = frozenset(also)
    return {name: value for name, value in environ.items() if name in wanted or _is_harmless(name)}


def _is_harmless(name: str) -> bool:
    # Proxies are written in small letters as well.
    return name in _NAMES or name.upper() in _PROXIES or name.startswith(_PREFIXES)
