"""The images are built from exact versions and hashes, and run as nobody."""

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
DOCKERFILES = sorted((REPO / "deploy" / "docker").glob("*/Dockerfile"))
EXACT = re.compile(r"[a-z0-9./-]+:[0-9]+\.[0-9]+\.[0-9]+(-[a-z0-9.-]+)?(@sha256:[0-9a-f]{64})?")


def instructions(path: Path) -> list[tuple[str, str]]:
    """Every instruction with its words; lines that end in a backslash are joined, comments are left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    found = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(word.upper(), rest.strip()) for word, _, rest in found]


def stages(path: Path) -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = [[]]
    for word, rest in instructions(path):
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found[1:]


def test_there_are_some():
    assert [path.parent.name for path in DOCKERFILES] == ["operator"]


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.parent.name)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_every_base_image_has_an_exact_version(path: Path):
    arguments = dict(rest.split("=", 1) for word, rest in instructions(path) if word == "ARG" and "=" in rest)
    own = {rest.split(" AS ")[1] for word, rest in instructions(path) if word == "FROM" and " AS " in rest}
    for word, rest in instructions(path):
        if word == "FROM":
            image = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], rest.split()[0])
            assert image in own or EXACT.fullmatch(image), image


def test_nothing_is_fetched_but_by_hash(path: Path):
    for word, rest in instructions(path):
        assert word != "ADD", "COPY does no more than it says"
        if word != "RUN":
            continue
        for command in rest.split("&&"):
            if re.search(r"\bpip3? install\b", command):
                assert "--require-hashes" in command or "--no-index" in command, command
            if re.search(r"\bnpm (ci|install)\b", command):
                assert "npm ci" in command, "npm install does not keep to the lock"
                assert "--ignore-scripts" in command, command
            assert not re.search(r"\b(curl|wget|sudo|latest)\b", command), command


def test_what_apt_leaves_behind_is_removed(path: Path):
    for word, rest in instructions(path):
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists" in rest


def test_no_cache_stays_in_a_layer(path: Path):
    for stage in stages(path):
        no_pip_cache = any(word == "ENV" and "PIP_NO_CACHE_DIR=1" in rest for word, rest in stage)
        for word, rest in stage:
            if word == "RUN" and re.search(r"\bpip3? install\b", rest):
                assert no_pip_cache or "--no-cache-dir" in rest
            if word == "RUN" and "npm ci" in rest:
                assert "npm cache clean" in rest


def test_the_image_runs_as_a_user_that_has_a_number_and_is_not_root(path: Path):
    last = stages(path)[-1]
    users = [rest for word, rest in last if word == "USER"]
    assert users
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", users[-1])
    after = last[last.index(("USER", users[-1])) :]
    assert not [word for word, _ in after if word in ("RUN", "COPY")]


def test_commands_are_lists_so_that_signals_arrive(path: Path):
    last = dict(stages(path)[-1])
    assert last["ENTRYPOINT"].startswith("[")
    assert last["CMD"].startswith("[")
    assert "HEALTHCHECK" not in last


def test_it_says_what_it_is(path: Path):
    labels = " ".join(rest for word, rest in stages(path)[-1] if word == "LABEL")
    for name in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_what_is_copied_is_there_and_is_sent_to_the_builder(path: Path):
    sent = [
        line.removeprefix("!").strip()
        for line in path.with_name("Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    for word, rest in instructions(path):
        if word == "COPY" and "--from=" not in rest:
            for source in rest.split()[:-1]:
                assert (REPO / source).exists(), source
                assert any(source == one or source.startswith(f"{one}/") for one in sent), source


def test_the_locks_of_the_image_agree_with_what_is_tested(path: Path):
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^[a-z0-9.-]+==\S+", (REPO / "requirements" / name).read_text(), re.MULTILINE))

    used = set(re.findall(r"-r requirements/(\S+)", path.read_text()))
    assert used == {"build.txt", "operator.txt"}
    for name in used:
        assert pins(name) <= pins("dev.txt"), name
