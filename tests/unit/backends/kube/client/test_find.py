"""The way to a cluster is found where kubectl would find it; when not, the message says what to do."""

import base64
from pathlib import Path

import pytest

from batuta.backends.kube.client.errors import AccessError
from tests.unit.backends.kube.client.configs import EXPIRED, SERVER, config, find, header, write


def test_a_token_in_the_file(tmp_path: Path) -> None:
    access = find(write(tmp_path / "config", config({"token": "abc"})))
    assert (access.server, access.namespace, access.ssl) == (SERVER, "one-space", None)
    assert header(access) == "Bearer abc"


def test_a_user_and_a_password(tmp_path: Path) -> None:
    access = find(write(tmp_path / "config", config({"username": "me", "password": "x"})))
    assert header(access) == "Basic bWU6eA=="


def test_a_token_file_lies_beside_the_kubeconfig(tmp_path: Path) -> None:
    write(tmp_path / "secrets" / "token", "abc\n")
    access = find(write(tmp_path / "config", config({"tokenFile": "secrets/token", "token": "older"})))
    assert header(access) == "Bearer abc"


def test_a_context_without_a_user_is_anonymous(tmp_path: Path) -> None:
    content = config()
    del content["contexts"][0]["context"]["user"]
    assert header(find(write(tmp_path / "config", content))) == ""


def test_whom_to_act_for(tmp_path: Path) -> None:
    access = find(write(tmp_path / "config", config({"token": "a", "as": "system:node:n1"})))
    assert access.headers == {"Impersonate-User": "system:node:n1"}


def test_a_proxy_and_another_name_of_the_server(tmp_path: Path) -> None:
    cluster = {"proxy-url": "http://proxy:3128", "tls-server-name": "kubernetes"}
    access = find(write(tmp_path / "config", config({}, cluster)))
    assert (access.proxy, access.tls_server_name) == ("http://proxy:3128", "kubernetes")


def test_another_context_than_the_current_one(tmp_path: Path) -> None:
    one, two = config({"token": "1"}), config({"token": "2"}, name="two")
    for section in ("clusters", "users", "contexts"):
        one[section] += two[section]
    path = write(tmp_path / "config", one)
    assert header(find(path)) == "Bearer 1"
    assert header(find(path, "two")) == "Bearer 2"
    with pytest.raises(AccessError, match=r"no context 'three' \(there are: one, two\)"):
        find(path, "three")


def test_several_files_are_one_and_the_first_that_says_something_counts(tmp_path: Path) -> None:
    first = config({"token": "1"})
    del first["current-context"]
    second = config({"tokenFile": "token"}, name="two")
    second["users"].append({"name": "one", "user": {"token": "not this one"}})
    third = config({"token": "3"}, name="three")
    write(tmp_path / "b" / "token", "2")
    paths = [
        write(tmp_path / "a" / "config", first),
        tmp_path / "missing",
        write(tmp_path / "b" / "config", second),
        write(tmp_path / "c" / "config", third),
    ]
    environ = {"KUBECONFIG": ":".join(map(str, paths))}
    assert header(find(environ=environ)) == "Bearer 2"
    assert header(find(context="one", environ=environ)) == "Bearer 1"
    assert header(find(context="three", environ=environ)) == "Bearer 3"


def test_the_file_in_the_home_folder(tmp_path: Path) -> None:
    write(tmp_path / ".kube" / "config", config({"token": "home"}))
    assert header(find(environ={"HOME": str(tmp_path)})) == "Bearer home"


def test_nothing_at_all(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"no kubeconfig: .* set KUBECONFIG or give --kubeconfig"):
        find(environ={"HOME": str(tmp_path)})
    with pytest.raises(AccessError, match="nowhere: No such file"):
        find(tmp_path / "nowhere")


def test_a_pod_is_its_service_account(tmp_path: Path) -> None:
    write(tmp_path / "token", "sa")
    write(tmp_path / "namespace", "batuta-system")
    write(tmp_path / "ca.crt", EXPIRED)  # any authority will do to be read
    environ = {"HOME": "/nowhere", "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = find(environ=environ, service_account=tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:6443", "batuta-system")
    assert header(access) == "Bearer sa"
    (tmp_path / "token").unlink()
    with pytest.raises(AccessError, match="automountServiceAccountToken"):
        find(environ=environ, service_account=tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a: [", r"config:1:5: not YAML"),
        ("- a", "not a kubeconfig"),
        ("", "no current context"),
        ({"clusters": {"name": "one"}}, "clusters should be a list"),
        ({"users": [{"name": "one", "token": "secret"}]}, r"users\[0\] should have a name and a user"),
        ({**config(), "current-context": ""}, r"no current context; choose one with --context .*one"),
        ({**config(), "clusters": []}, "names no cluster"),
        ({**config(), "users": []}, "user 'one', who is not there"),
        (config({}, {"server": "127.0.0.1:6443"}), "begins with https://"),
        (config({"tokenFile": "missing"}), "missing cannot be read: No such file"),
        (config({"auth-provider": {"name": "gcp"}}), "'gcp', which Kubernetes removed"),
        (config({}, {"server": "https://x", "certificate-authority": "ca"}), "ca: No such file"),
        (config({}, {"server": "https://x", "certificate-authority-data": "%"}), "is not base64"),
        (config({}, {"server": "https://x", "certificate-authority-data": "AAAA"}), "cannot be read"),
        (config({"as-groups": ["a"]}), "not supported"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_without_secrets(
    tmp_path: Path, content: object, complaint: str
) -> None:
    with pytest.raises(AccessError, match=complaint) as refused:
        find(write(tmp_path / "config", content))
    assert "secret" not in str(refused.value)


def test_an_expired_client_certificate_is_named_with_its_date(tmp_path: Path) -> None:
    user = {
        "client-certificate-data": base64.b64encode(EXPIRED.encode()).decode(),
        "client-key-data": base64.b64encode(b"any").decode(),
    }
    path = write(tmp_path / "config", config(user, {"server": "https://x"}))
    with pytest.raises(AccessError, match=r"user 'one' in .*config expired on 2020-01-02 03:04 UTC"):
        find(path)


def test_half_a_client_certificate_is_an_error(tmp_path: Path) -> None:
    user = {"client-certificate-data": base64.b64encode(EXPIRED.encode()).decode()}
    path = write(tmp_path / "config", config(user, {"server": "https://x"}))
    with pytest.raises(AccessError, match="has no client-key"):
        find(path)
