"""`batuta.Client` is there, and costs nothing until it is used."""

import subprocess
import sys

import pytest

import batuta


def loaded_by(code: str) -> str:
    program = f"import sys; {code}; print('httpx2' in sys.modules, 'numpy' in sys.modules)"
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_only_who_asks_for_the_client_loads_it():
    assert loaded_by("import batuta") == "False False"
    assert loaded_by("import batuta.sdk") == "False False"
    assert loaded_by("from batuta import Client") == "True False"


def test_it_is_the_same_each_time():
    from batuta.client.client import Client

    assert batuta.Client is Client
    assert batuta.Client is batuta.Client
    assert {"Client", "ApiError", "NoServerError"} <= set(dir(batuta))


def test_other_names_are_errors():
    with pytest.raises(AttributeError, match="has no attribute 'Clint'"):
        _ = batuta.Clint
