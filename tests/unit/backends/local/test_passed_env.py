"""Jobs inherit what programs need, and no secrets of whoever started the server."""

from batuta.backends.local.job_environment import inherited_env


def test_what_programs_need_is_passed_on() -> None:
    needed = {
        "PATH": "/bin",
        "HOME": "/home/ana",
        "LC_ALL": "C",
        "PYTHONPATH": "/lib",
        "CUDA_HOME": "/usr/local/cuda",
        "https_proxy": "http://proxy:3128",
        "NO_PROXY": "localhost",
    }
    assert inherited_env(needed) == needed


def test_all_else_stays_unless_it_is_named() -> None:
    environ = {
        "PATH": "/bin",
        "AWS_SECRET_ACCESS_KEY": "s",
        "BATUTA_TOKEN": "t",
        "HF_TOKEN": "h",
        "PATHS": "x",
    }
    assert inherited_env(environ) == {"PATH": "/bin"}
    assert inherited_env(environ, ["HF_TOKEN", "ABSENT"]) == {"PATH": "/bin", "HF_TOKEN": "h"}
