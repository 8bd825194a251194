import numpy as np
import pytest

from batuta.policies.explanation import explain_allocation
from tests.support.views import make_view


@pytest.mark.parametrize(
    ("capacity", "got", "sentence"),
    [
        (6, 6, "6 of 6 GPUs: its maximum"),
        (4, 0, "0 GPUs: asks for 4 (at least 2), 3 left"),
        (2, 0, "0 GPUs: needs 2, 1 left"),
        (9, 0, "0 GPUs: 8 left, but some passes it by (needs 2, asks for 4)"),
        (3, 2, "2 of 6 GPUs: its minimum; the next step takes 1, 0 left"),
        (9, 2, "2 of 6 GPUs: its minimum; some gives no more, 6 left"),
        (5, 4, "4 of 6 GPUs: the size it asked for; the next step takes 1, 0 left"),
        (4, 3, "3 of 6 GPUs: 1 above its minimum; the next step takes 1, 0 left"),
    ],
)
def test_one_sentence_with_numbers(capacity: int, got: int, sentence: str) -> None:
    """Another job has one GPU as well."""
    jobs = [{"id": "a", "min": 2, "size": 4, "max": 6}, {"id": "b", "submit_s": 1.0}]
    view = make_view(capacity, jobs)
    if got == 6:
        assert explain_allocation("some", view, np.array([6, 0])) == [sentence, "0 GPUs: needs 1, 0 left"]
    else:
        assert explain_allocation("some", view, np.array([got, 1])) == [sentence, "1 of 1 GPUs: its maximum"]
