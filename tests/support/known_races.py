"""Whether `.ci/run` passes: a test that fails and then passes alone is a race, and a race is a fault.

The first run and the one of what failed in it each leave a file (`pytest --outcome-to FILE`). With `--strict`
the run stays red, unless every test that failed passed alone and stands in `known_races.txt` with an
explanation. Without it, a race that is not explained is said and nothing more.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KNOWN_RACES = Path(__file__).resolve().parents[1] / "known_races.txt"

_PASSED, _TESTS_FAILED = 0, 1
"""pytest's exit codes. All others mean that it did not come to its end, or that there was nothing to run."""


@dataclass(frozen=True)
class Outcome:
    """How a run of pytest ended."""

    exit_code: int
    failed: frozenset[str]

    @classmethod
    def read(cls, file: Path) -> "Outcome | None":
        """What a run has left; None if pytest ended before it could say."""
        if not file.exists():
            return None
        stored = json.loads(file.read_text())
        return cls(stored["exit_code"], frozenset(stored["failed"]))

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"exit_code": self.exit_code, "failed": sorted(self.failed)}))


def read_known_races(text: str) -> dict[str, str]:
    """Test id → explanation: an id at the start of a line, and the explanation on indented lines below it.

    Lines that start with `#` are for the reader. A race without an explanation is refused.
    """
    known: dict[str, str] = {}
    test = ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if not line[0].isspace():
            test = line.strip()
            known[test] = ""
        elif not test:
            raise ValueError(f"an explanation without a test: {line.strip()}")
        else:
            known[test] = f"{known[test]} {line.strip()}".strip()
    for test, explanation in known.items():
        if not explanation:
            raise ValueError(f"a known race without an explanation: {test}")
    return known


def reasons_to_refuse(first: Outcome | None, alone: Outcome | None) -> list[str]:
    """Why the run is red whatever is known of races, one line each; none if it is green."""
    if first is None:
        return ["pytest ended before it could say what failed"]
    if first.exit_code == _PASSED:
        return []
    if first.exit_code != _TESTS_FAILED or not first.failed:
        return [f"pytest ended with {first.exit_code}, which no single test explains"]
    if alone is None or alone.exit_code not in (_PASSED, _TESTS_FAILED):
        return ["what failed could not be run alone", *sorted(first.failed)]
    return sorted(f"{test}: fails alone, too" for test in alone.failed)


def unexplained_races(first: Outcome | None, alone: Outcome | None, known: Mapping[str, str]) -> list[str]:
    """The tests that failed, passed alone, and are not explained, one line each."""
    if first is None or alone is None:
        return []
    return sorted(
        f"{test}: failed, and passed alone: a race that tests/known_races.txt does not explain"
        for test in first.failed - alone.failed
        if test not in known
    )


def main(first: Path, alone: Path, *, strict: bool) -> int:
    """Say why the run is red, and which races it had."""
    known = read_known_races(KNOWN_RACES.read_text())
    before, after = Outcome.read(first), Outcome.read(alone)
    reasons, races = reasons_to_refuse(before, after), unexplained_races(before, after, known)
    for line in (*reasons, *races):
        sys.stdout.write(f"{line}\n")
    for test in sorted(known.keys() & (before.failed if before is not None else frozenset())):
        sys.stdout.write(f"{test}: a known race. {known[test]}\n")
    return 1 if reasons or (strict and races) else 0


if __name__ == "__main__":
    *options, one, other = sys.argv[1:]
    sys.exit(main(Path(one), Path(other), strict="--strict" in options))
