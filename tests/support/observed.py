"""Time that tests set: the machine's steady clock, and a clock on the wall that may jump."""

from batuta.engine.observed_time import ObservedTime


class KeptTexts:
    """Settings that outlive no test."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        return self.texts.get(key)

    def put(self, key: str, value: str) -> None:
        self.texts[key] = value


class SetTime:
    """Two clocks. `passes` moves both, as time does; `jumps` moves the one on the wall, as people do."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.wall_s, self.steady_s = now_s, 50.0

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.steady_s += seconds

    def jumps(self, seconds: float) -> None:
        self.wall_s += seconds

    def observed(self, settings: KeptTexts | None = None, last_s: float = 0.0) -> ObservedTime:
        return ObservedTime(settings or KeptTexts(), last_s, lambda: self.wall_s, lambda: self.steady_s)
