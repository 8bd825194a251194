"""Write and read how much of each GPU a container may have, and get the share library into its processes.

`native/share` reads the file. A line is a word and its value. The first names the format: a library of
another version refuses the file.

    batuta-share 1
    container train-7
    region /run/batuta/share/train-7/region
    cards /run/batuta/share/cards
    device GPU-8f6… memory_mib=4096 compute_percent=50 soft_compute_percent=30 weight=100
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from batuta.spec.problem import InputError, Problem, did_you_mean

LIMITS_PATH = Path("/etc/batuta/share/limits")
"""Where the library looks first. A file here is the only one that counts."""
LIMITS_VARIABLE = "BATUTA_SHARE_LIMITS"
"""Names the file for jobs of a user who is not root, on machines that have none at `LIMITS_PATH`."""

LIMITS_FORMAT = "batuta-share 1"
MAX_DEVICES = 16
_MAX_MIB = 1 << 30
_MAX_WEIGHT = 10_000
LONGEST_NAME, _LONGEST_PATH, _LONGEST_UUID = 63, 1023, 47  # what the library has room for
_NUMBERS = ("memory_mib", "compute_percent", "soft_compute_percent", "weight")
PRELOAD_VARIABLE = "LD_PRELOAD"


@dataclass(frozen=True, slots=True)
class DeviceLimit:
    """What a container may have of one GPU.

    Memory is always a hard limit: it cannot be taken back. Compute is device time, in percent of the card.
    """

    uuid: str
    memory_mib: int | None = None  # None: all there is
    compute_percent: int | None = None  # hard: never more than this, however idle the card is. None: no fixed limit.
    soft_compute_percent: int | None = None  # guaranteed; more while the card is idle, up to `compute_percent`
    weight: int = 100  # how the rest of a card is divided among containers that want it

    def problems(self) -> Iterator[Problem]:
        soft, hard = self.soft_compute_percent, self.compute_percent
        checks = (
            (
                0 < len(self.uuid) <= _LONGEST_UUID and not set(self.uuid) & set(" \t\r\n"),
                f"{self.uuid!r} is no UUID of a GPU",
            ),
            (
                self.memory_mib is None or 0 <= self.memory_mib <= _MAX_MIB,
                f"memory_mib: from 0 to {_MAX_MIB}, not {self.memory_mib}",
            ),
            (hard is None or 1 <= hard <= 100, f"compute_percent: from 1 to 100, not {hard}"),
            (soft is None or 1 <= soft <= 100, f"soft_compute_percent: from 1 to 100, not {soft}"),
            (
                soft is None or hard is None or soft <= hard,
                f"soft_compute_percent: at most the hard limit of {hard}, not {soft}",
            ),
            (1 <= self.weight <= _MAX_WEIGHT, f"weight: from 1 to {_MAX_WEIGHT}, not {self.weight}"),
        )
        return (Problem(message) for holds, message in checks if not holds)


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """The limits of one container, and where its processes keep their accounts."""

    container: str
    region: Path  # a file that the container's processes share; the library makes it. One for each container.
    devices: tuple[DeviceLimit, ...] = field(default=())  # a GPU that is not named here gives no memory
    cards: Path | None = None  # a folder that all containers of the node share: soft limits and weights need it

    def problems(self) -> list[Problem]:
        found = [problem for device in self.devices for problem in device.problems()]
        if not 0 < len(self.container) <= LONGEST_NAME or set(self.container) & set(" \t\r\n"):
            found.append(Problem(f"container: a word of 1 to {LONGEST_NAME} letters, not {self.container!r}"))
        for word, path in (("region", self.region), ("cards", self.cards)):
            if path is not None and not _is_usable(path):
                found.append(Problem(f"{word}: an absolute path in one line, not {str(path)!r}"))
        uuids = [device.uuid for device in self.devices]
        found += [Problem(f"device {uuid} is named twice") for uuid in {u for u in uuids if uuids.count(u) > 1}]
        if len(self.devices) > MAX_DEVICES:
            found.append(Problem(f"{len(self.devices)} devices, and there is room for {MAX_DEVICES}"))
        if self.cards is None:
            found += [
                Problem(f"device {device.uuid} has a soft limit", fix="name the folder `cards`, which it needs")
                for device in self.devices
                if device.soft_compute_percent is not None
            ]
        return found


def write_limits(path: Path, limits: ShareLimits) -> None:
    """Write the file whole or not at all. Running processes follow it within a second."""
    if problems := limits.problems():
        raise InputError(problems)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(to_text(limits), encoding="utf-8")
        # The library refuses a file that others than its owner may write.
        unfinished.chmod(0o644)
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise InputError.of(f"cannot write {path}: {error.strerror}") from error


def to_text(limits: ShareLimits) -> str:
    lines = [LIMITS_FORMAT, f"container {limits.container}", f"region {limits.region}"]
    if limits.cards is not None:
        lines.append(f"cards {limits.cards}")
    for device in limits.devices:
        numbers = {name: getattr(device, name) for name in _NUMBERS}
        given = (f"{name}={value}" for name, value in numbers.items() if value is not None)
        lines.append(" ".join(("device", device.uuid, *given)))
    return "\n".join(lines) + "\n"


def read_limits(path: Path) -> ShareLimits:
    """Return the limits of a file, or raise InputError with all its problems."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError.of(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    return from_text(text, str(path))


def from_text(text: str, file: str = "") -> ShareLimits:
    """Return the limits in the contents of a file, or raise InputError."""
    problems: list[Problem] = []
    values: dict[str, str] = {}
    devices: list[DeviceLimit] = []
    first, *rest = text.splitlines() or [""]
    if first != LIMITS_FORMAT:
        raise InputError.of(f"the first line is not {LIMITS_FORMAT!r}", file=file, line=1)
    for number, line in enumerate(rest, start=2):
        word, _, value = line.partition(" ")
        if word == "device":
            devices.append(_device(value, file, number, problems))
        elif word in ("container", "region", "cards") and word not in values:
            values[word] = value
        elif word in values:
            problems.append(Problem(f"{word!r} a second time", file, number))
        elif word:
            known = ("container", "region", "cards", "device")
            problems.append(Problem(f"unknown: {word!r}", file, number, fix=did_you_mean(word, known)))
    problems += [Problem(f"no line {word!r}", file=file) for word in ("container", "region") if word not in values]
    if problems:
        raise InputError(problems)
    cards = values.get("cards")
    limits = ShareLimits(values["container"], Path(values["region"]), tuple(devices), Path(cards) if cards else None)
    if problems := [Problem(one.message, file=file, fix=one.fix) for one in limits.problems()]:
        raise InputError(problems)
    return limits


def _device(text: str, file: str, line: int, problems: list[Problem]) -> DeviceLimit:
    uuid, *words = text.split() or [""]
    numbers: dict[str, int] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in _NUMBERS:
            problems.append(Problem(f"unknown: {word!r}", file, line, fix=did_you_mean(name, _NUMBERS)))
        elif not (value.isascii() and value.isdigit()):
            problems.append(Problem(f"{name}: a whole number, not {value!r}", file, line))
        else:
            numbers[name] = int(value)
    return DeviceLimit(uuid, **numbers)


def _is_usable(path: Path) -> bool:
    text = str(path)
    return path.is_absolute() and len(text) <= _LONGEST_PATH and text == text.strip() and "\n" not in text


def share_environment(limits_path: Path, library: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that limit a process, and all that it starts, by the file.

    `base` is the environment that they are added to: what it preloads stays preloaded, after the library.
    """
    before = (base or {}).get(PRELOAD_VARIABLE, "")
    words = [word for word in before.replace(":", " ").split() if word != str(library)]
    return {PRELOAD_VARIABLE: ":".join((str(library), *words)), LIMITS_VARIABLE: str(limits_path.absolute())}
