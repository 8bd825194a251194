"""The shapes of docs/reference/http-api.md are those that the client reads."""

import json
import re
from pathlib import Path

import pytest

from batuta.apitypes import resources as a
from batuta.client.decoding import decode, decode_list, encode
from batuta.client.errors import AnswerError

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "http-api.md"


def example(heading: str) -> dict:
    found = re.search(rf"## {heading}\n\n```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_job_of_the_reference():
    told = example("A job")
    job = decode(a.Job, told)
    assert (job.id, job.state, job.gpus.now, job.gpus.max) == ("17", "RUNNING", 2, 8)
    assert job.placement == (a.Span("node-0", (0, 1)),)
    assert job.progress is not None
    assert job.progress.fraction == 0.42
    assert job.reason is not None
    assert job.reason.evidence == {"gpus": 2, "asked": 4}
    assert not job.is_over
    assert job.label == "17 (resnet)"
    written = json.loads(json.dumps(encode(job)))
    assert told.items() <= {**written, "gpus": {k: written["gpus"][k] for k in told["gpus"]}}.items()


def test_the_node_of_the_reference():
    node = decode(a.Node, example("A node"))
    assert node.gpus == (a.Gpu(0, True, (a.GpuTenant("17"),), None),)


def test_what_is_not_known_is_ignored_and_what_is_not_needed_may_be_missing():
    job = decode(a.Job, {"id": "1", "from_the_future": True, "progress": None})
    assert (job.id, job.progress, job.gpus) == ("1", None, a.Gpus())


@pytest.mark.parametrize("data", [{}, [], None, {"id": 3}, {"id": "1", "gpus": 4}, {"id": "1", "placement": [{}]}])
def test_another_answer_is_an_error_with_words(data):
    with pytest.raises(AnswerError, match="the server's answer is not Job"):
        decode(a.Job, data)


def test_lists():
    assert decode_list(a.PolicySeen, {"policies": [{"name": "fifo"}]}, "policies") == (a.PolicySeen("fifo"),)
    with pytest.raises(AnswerError, match="has no list of jobs"):
        decode_list(a.Job, {"detail": "?"}, "jobs")


def test_everything_can_be_written():
    assert encode({"jobs": (a.Job("1"),)})["jobs"][0]["id"] == "1"
