"""A real control plane for every test below: one that all share, or one of a test's own to break."""

import gc
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.flags import Options
from tests.support.kube.launch import program_names
from tests.support.kube.nodes import NodeShape
from tests.support.kube.programs import program, why_not

SHARED = Options(controllers=True)

OWN_CLUSTERS = pytest.StashKey[list[ControlPlane]]()
LASTING = pytest.StashKey[dict[str, ControlPlane]]()
"""By the name of their fixture: the control planes that last as long as the session."""

MakeCluster = Callable[..., ControlPlane]
AddNodes = Callable[..., list[str]]
LastingCluster = Callable[[str, Options], AbstractContextManager[ControlPlane]]


def pytest_runtest_setup(item: pytest.Item) -> None:
    # Skipping here, and not in a fixture, lets pytest fold all of them into one line of its summary.
    if "programs_for" in getattr(item, "fixturenames", ()) and (problem := _no_programs()):
        if os.environ.get("CI"):
            pytest.fail(f"no control plane, and CI must have one: {problem}", pytrace=False)
        pytest.skip(f"no control plane: {problem}")


@cache
def _no_programs() -> str | None:
    """Why there can be no control plane on this machine; None if there can."""
    if shutil.which("openssl") is None:
        return "no openssl on PATH"
    return why_not([*program_names(SHARED), "kube-scheduler", "kubectl"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Lets control planes sleep while tests run that have nothing to do with them: most of the session."""
    for name, one in item.config.stash.get(LASTING, {}).items():
        if name in getattr(item, "fixturenames", ()):
            one.resume()
    done = yield
    if nextitem is not None and nextitem.path != item.path:  # a file may have an operator that goes on
        for name, one in item.config.stash.get(LASTING, {}).items():
            if name not in getattr(nextitem, "fixturenames", ()):
                one.pause()
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says where the logs of its control planes are, and which programs have ended."""
    report = yield
    if report.failed:
        used = [*getattr(item, "funcargs", {}).values(), *item.stash.get(OWN_CLUSTERS, [])]
        if said := [each.describe() for each in used if isinstance(each, ControlPlane)]:
            report.sections.append(("control plane", "\n".join(said)))
    return report


@pytest.fixture(scope="module", autouse=True)
def sockets_that_asyncio_loses() -> Iterator[None]:
    """A watch that is cancelled while it connects may lose its socket in asyncio, which seldom happens.

    It is found and told here, not in whatever test runs when garbage is collected. All else that is left open
    is a fault.
    """
    yield
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    left_open = [str(one.message) for one in found]
    lost = [words for words in left_open if words.startswith(("unclosed transport", "unclosed <socket"))]
    if lost:
        sys.stderr.write("\n".join([*lost, ""]))
    assert len(lost) == len(left_open), left_open


@pytest.fixture(scope="session")
def programs_for(pytestconfig: pytest.Config) -> Callable[[Options], None]:
    """Builds what a control plane needs, in plain sight: it may take minutes."""

    def build(options: Options) -> None:
        names = [*program_names(options), "kubectl"]
        terminal = pytestconfig.pluginmanager.getplugin("capturemanager")
        assert terminal is not None
        with terminal.global_and_fixture_disabled():
            for name in names:
                program(name)

    return build


@pytest.fixture(scope="session")
def lasting_cluster(
    programs_for: Callable[[Options], None], tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> LastingCluster:
    """Starts a control plane for a fixture of this name that is there to the end of the session."""
    lasting = pytestconfig.stash.setdefault(LASTING, {})

    @contextmanager
    def start(fixture: str, options: Options) -> Iterator[ControlPlane]:
        programs_for(options)
        with ControlPlane(tmp_path_factory.mktemp(fixture), options) as running:
            lasting[fixture] = running
            try:
                yield running
            finally:
                del lasting[fixture]

    return start


@pytest.fixture(scope="session")
def cluster(lasting_cluster: LastingCluster) -> Iterator[ControlPlane]:
    """The shared control plane: controllers and KWOK, no scheduler, no nodes but those you add."""
    with lasting_cluster("cluster", SHARED) as running:
        yield running


@pytest.fixture(scope="session")
def fragile(lasting_cluster: LastingCluster) -> Iterator[ControlPlane]:
    """A control plane that tests may break, and leave running again. It knows nothing of Batuta."""
    with lasting_cluster("fragile", Options()) as running:
        yield running


@pytest.fixture
def namespace(cluster: ControlPlane) -> Iterator[str]:
    """A fresh namespace of the shared control plane."""
    name = cluster.new_namespace()
    yield name
    cluster.clear_namespace(name)


@pytest.fixture
def add_nodes(cluster: ControlPlane, namespace: str) -> Iterator[AddNodes]:
    """Adds fake nodes to the shared control plane, and takes them away after the test."""
    added: list[str] = []

    def add(count: int, shape: NodeShape | None = None, prefix: str | None = None) -> list[str]:
        names = cluster.add_nodes(count, shape, prefix or f"{namespace}-{len(added)}")
        added.extend(names)
        return names

    yield add
    cluster.delete_nodes(added)


@pytest.fixture
def make_cluster(
    request: pytest.FixtureRequest, programs_for: Callable[[Options], None], tmp_path: Path
) -> Iterator[MakeCluster]:
    """Starts a control plane of the test's own, to be stopped, compacted, or started with other options."""
    own = request.node.stash.setdefault(OWN_CLUSTERS, [])
    with ExitStack() as started:

        def make(options: Options | None = None, name: str = "cluster") -> ControlPlane:
            options = options or Options()
            programs_for(options)
            own.append(ControlPlane(tmp_path / name, options))
            return started.enter_context(own[-1])

        yield make
