"""Names of jobs in any script, and what stands for them in host names."""

import re
import unicodedata

import pytest

from batuta.spec.task import LONGEST, host_name, parse_name, parse_task

DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
ANY_SCRIPT = ("训练", "тест-1", "परीक्षण", "学習_v2", "épreuve", "ทดสอบ", "모델.7", "ResNet-50")


@pytest.mark.parametrize("name", ANY_SCRIPT)
def test_a_name_may_be_of_any_script(name: str) -> None:
    assert parse_task(f"name: {name}\nrun: x").name == name
    assert DNS_LABEL.fullmatch(host_name(name, 52)), host_name(name, 52)


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "../x", "-x", "x-", ".", "a\nb", "a\x00", "🚀", "x" * (LONGEST + 1)]
)
def test_what_could_be_taken_for_a_path_or_an_option_is_no_name(name: str) -> None:
    assert parse_name(name) is None


def test_a_name_is_the_same_however_it_is_typed() -> None:
    assert parse_name(unicodedata.normalize("NFD", "épreuve")) == "épreuve"


def test_host_names_stay_apart_and_short() -> None:
    """Given names that differ in letters that a host name cannot have, then their host names differ."""
    assert host_name("resnet_50", 52) == "resnet-50"
    assert host_name("7b", 52) == "job-7b"
    assert len({host_name(name, 52) for name in ("训练", "测试", "train-训练", "train-测试")}) == 4
    assert host_name("train-训练", 52).startswith("train-")
    assert len(host_name("训" * LONGEST, 52)) <= 52
    assert len(host_name("x训" * 60, 52)) == 52
