"""How a local server proves who it is before a client sends it a token.

Both know a secret: the admin's token, in a file of the state directory. The client sends random digits, the
server answers with their MAC under the secret. The address is part of it, so another program that has taken the
port of a dead server cannot pass on the answer of a server that lives at another one.
"""

from __future__ import annotations

import hashlib
import hmac
import re

PATH = "/server-proof"
NONCE = re.compile(r"[0-9a-f]{32,128}")


def server_proof(secret: str, nonce: str, url: str) -> str:
    """Return what shows that the server at this address knows the secret."""
    return hmac.new(secret.encode(), f"batuta server proof\n{nonce}\n{url}".encode(), hashlib.sha256).hexdigest()


def is_proof(given: object, secret: str, nonce: str, url: str) -> bool:
    """Return whether an answer is the proof; an empty secret proves nothing."""
    expected = server_proof(secret, nonce, url)
    return bool(secret) and isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
