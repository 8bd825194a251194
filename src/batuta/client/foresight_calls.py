"""Asking about the future: when jobs finish, and what a change would do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from batuta.client import foresight_answers as f
from batuta.client.decoding import decode
from batuta.client.submission import Submission
from batuta.client.transport import Transport

ANSWER_WITHIN_S = 200.0


class ForesightCalls:
    """The part of `Client` that looks ahead. Answers may take a while where there are thousands of jobs."""

    _transport: Transport

    def eta(self, job: str | None = None, *, expects_arrivals: bool = True) -> f.Eta:
        """When jobs start and finish; all that are not over, or the one with this id.

        `expects_arrivals`: jobs keep coming as they did lately; False asks what if nobody else came.
        """
        params: dict[str, Any] = {} if job is None else {"job": job}
        if not expects_arrivals:
            params["arrivals"] = "false"
        found = self._transport.json("GET", "/eta", params=params, timeout=ANSWER_WITHIN_S)
        return decode(f.Eta, found)

    def what_if(
        self,
        *,
        policy: str | None = None,
        add_nodes: str = "",
        quota: Sequence[tuple[str, str]] = (),
        submit: Sequence[Submission] = (),
        drain: Sequence[str] = (),
        expects_arrivals: bool = False,
        seed: int = 0,
    ) -> f.WhatIf:
        """What a change would do to every job; nothing is changed. Raises ApiError with all problems."""
        body = what_if_body(
            policy=policy,
            add_nodes=add_nodes,
            quota=quota,
            submit=submit,
            drain=drain,
            expects_arrivals=expects_arrivals,
            seed=seed,
        )
        found = self._transport.json("POST", "/whatif", json=body, repeatable=True, timeout=ANSWER_WITHIN_S)
        return decode(f.WhatIf, found)

    def shadow(self) -> f.Shadow:
        """What the policy that only watches would have done."""
        return decode(f.Shadow, self._transport.json("GET", "/shadow"))

    def set_shadow(self, policy: str) -> f.Shadow:
        """Lets another policy watch from now on; an empty name ends that."""
        return decode(f.Shadow, self._transport.json("PUT", "/shadow", json={"policy": policy}))


def what_if_body(*, submit: Sequence[Submission] = (), **said: Any) -> Mapping[str, Any]:
    """The question as it is sent: what is not said is left out."""
    quota = [{"name": name, "text": text} for name, text in said.pop("quota", ())]
    body: dict[str, Any] = {key: value for key, value in said.items() if value}
    if "drain" in body:
        body["drain"] = list(body["drain"])
    if quota:
        body["quota"] = quota
    if submit:
        body["submit"] = [json.loads(one.body()) for one in submit]
    return body
