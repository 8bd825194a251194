"""What a certificate says about its end."""

from datetime import UTC, datetime

import pytest

from batuta.backends.kube.client.credentials import not_after
from tests.unit.backends.kube.client.configs import EXPIRED, FAR


def test_the_end_of_a_certificate_is_read_in_both_ways_to_write_it() -> None:
    assert not_after(EXPIRED.encode()) == datetime(2020, 1, 2, 3, 4, tzinfo=UTC)
    assert not_after(FAR.encode()) == datetime(2060, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
        "-----BEGIN CERTIFICATE-----\n%\n-----END CERTIFICATE-----",
        EXPIRED[:200] + "\n-----END CERTIFICATE-----",
    ],
)
def test_a_certificate_that_cannot_be_read_has_no_end(text: str) -> None:
    assert not_after(text.encode()) is None
