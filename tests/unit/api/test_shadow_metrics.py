"""What a second policy would have done, as Prometheus reads it."""

from batuta.api.routes.metrics import shadow_metrics
from batuta.engine.shadow import Difference, ShadowReport


def samples(report: ShadowReport | None) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for metric in shadow_metrics(report)
        for sample in metric.samples
    }


def test_nothing_is_told_while_nobody_watches() -> None:
    assert samples(None) == samples(ShadowReport("")) == {}


def test_cycles_commands_and_differences_are_counted() -> None:
    report = ShadowReport(
        "afs-l",
        cycles=10,
        skipped=2,
        agreed=6,
        failed=1,
        would={"start": 3},
        did={"start": 2},
        differences=(Difference("a", 1, 2, 0.0),),
    )
    assert samples(report) == {
        ("batuta_shadow_cycles_total", "agreed"): 6,
        ("batuta_shadow_cycles_total", "differed"): 3,
        ("batuta_shadow_cycles_total", "failed"): 1,
        ("batuta_shadow_cycles_total", "skipped"): 2,
        ("batuta_shadow_commands_total", "would", "start"): 3,
        ("batuta_shadow_commands_total", "did", "start"): 2,
        ("batuta_shadow_differences",): 1,
    }
