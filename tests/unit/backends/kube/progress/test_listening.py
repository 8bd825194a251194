"""Logs are followed through whatever happens to connections, nodes and pods, and never too many at once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from batuta.backends.kube.progress.log_lines import LogSource, ResultReport
from batuta.backends.kube.progress.log_reader import Changes, LogReaders, LogSubscriptions
from tests.unit.backends.kube.progress.log_server import QUICK, Ears, Logs, listening, log_of, report

Story = Callable[[Logs, LogReaders, Ears], Awaitable[None]]


def tell(story: Story, **how: object) -> None:
    async def run() -> None:
        logs = Logs()
        async with listening(logs, **how) as (listeners, ears):  # type: ignore[arg-type]
            await story(logs, listeners, ears)

    asyncio.run(run())


def listen_to(listeners: LogReaders, *logs: LogSource) -> None:
    listeners.take({log.job: log for log in logs})


def test_reports_are_heard_as_they_are_printed():
    async def story(logs: Logs, listeners: LogReaders, ears: Ears) -> None:
        await logs.print(b"hello", report(1))
        listen_to(listeners, log_of())
        await ears.wait_for(1)
        await logs.print(b"epoch 1", report(2))
        await ears.wait_for(1, 2)
        assert logs.asked[0] == {
            "container": "main",
            "follow": "true",
            "tailLines": "1000",
            "timestamps": "true",
        }

    tell(story)


@pytest.mark.parametrize("cut", [1, 30, 45, 60, 75, 76, 77, 90, 151, 152, 153])
def test_a_connection_that_breaks_in_the_middle_of_a_line_costs_nothing(cut):
    """Given an answer that breaks off after any number of bytes, each report is heard once."""

    async def story(logs: Logs, listeners: LogReaders, ears: Ears) -> None:
        await logs.print(report(1), report(2))
        logs.cuts = [cut, cut]
        listen_to(listeners, log_of())
        await ears.wait_for(1, 2)
        await logs.print(report(3))
        await ears.wait_for(1, 2, 3)

    tell(story)


def test_a_node_that_does_not_answer_is_asked_again_and_then_goes_on_where_it_was():
    async def story(logs: Logs, listeners: LogReaders, ears: Ears) -> None:
        await logs.print(report(1))
        logs.refusals = [500, 503, 400]
        listen_to(listeners, log_of())
        await ears.wait_for(1)
        assert len(logs.asked) == 4
        assert not ears.has_all()

    tell(story)


def test_a_pod_that_is_gone_is_not_asked_for_again():
    async def story(logs: Logs, listeners: LogReaders, ears: Ears) -> None:
        logs.refusals = [404]
        listen_to(listeners, log_of())
        await ears.wait_for_all()
        assert len(logs.asked) == 1

    tell(story)


def test_the_last_words_of_a_pod_are_heard_when_it_has_ended():
    """Given a pod that ends while its log is followed, the rest is read once and then nothing more."""

    async def story(logs: Logs, listeners: LogReaders, ears: Ears) -> None:
        await logs.print(report(1))
        listen_to(listeners, log_of())
        await ears.wait_for(1)
        await logs.print(report(2), b'batuta-report {"event":"result","value":{"loss":1}}')
        listen_to(listeners, log_of(is_over=True))
        await ears.wait_for_all()
        assert ears.steps() == [1, 2]
        results = [one for heard in ears.heard for one in heard.said if isinstance(one, ResultReport)]
        assert results == [ResultReport('{"loss":1}')]
        assert "follow" not in logs.asked[-1]

    tell(story)


@pytest.mark.parametrize("refusals", [[500], [404], [403]])
def test_a_pod_whose_end_cannot_be_read_has_no_more_to_say(refusals):
    async def story(logs: Logs, listeners: LogReaders, ears: Ears) -> None:
        logs.refusals = refusals
        listen_to(listeners, log_of(is_over=True))
        await ears.wait_for_all()
        assert len(logs.asked) == 1

    tell(story)


def test_more_logs_than_there_is_room_for_take_turns():
    """Given ten logs and room for two, all are heard, again and again, and never more than two at once."""

    async def story(logs: Logs, listeners: LogReaders, ears: Ears) -> None:
        pods = [f"train-{number}" for number in range(10)]
        listen_to(listeners, *map(log_of, pods))
        for step in (1, 2, 3):
            for pod in pods:
                await logs.print(report(step), pod=pod)
            for pod in pods:
                await ears.wait_for(*range(1, step + 1), pod=pod)
        assert ears.most_at_once() == 2

    tell(story, most=2)


def test_a_log_that_nobody_wants_to_hear_any_more_is_left():
    async def story(logs: Logs, listeners: LogReaders, ears: Ears) -> None:
        listen_to(listeners, log_of())
        await logs.print(report(1))
        await ears.wait_for(1)
        listeners.take({log_of().job: None})
        listen_to(listeners, log_of("other-0"))
        await logs.print(report(2))
        await logs.print(report(3), pod="other-0")
        await ears.wait_for(3, pod="other-0")
        assert ears.steps() == [1]

    tell(story)


def test_lies_and_floods_are_refused_counted_and_outlived():
    async def story(logs: Logs, listeners: LogReaders, ears: Ears) -> None:
        broken = [b'batuta-report {"step":-1}', b"batuta-report {oops", b'batuta-report {"step":"x"}']
        await logs.print(*broken, *(report(step) for step in range(1000)))
        listen_to(listeners, log_of())
        while 999 not in ears.steps():
            await asyncio.sleep(0.01)
        assert len(ears.steps()) + ears.refused == 1000  # the tail of a thousand lines, of 1,003
        await logs.print(report(1001))
        while 1001 not in ears.steps():
            await asyncio.sleep(0.01)

    tell(story)


def test_a_log_that_is_written_too_fast_is_read_from_its_end():
    """Given megabytes that may not all be read, what is printed last is heard."""

    async def story(logs: Logs, listeners: LogReaders, ears: Ears) -> None:
        await logs.print(*[b"x" * 5000] * 900, report(1))
        listen_to(listeners, log_of())
        await logs.print(*[b"x" * 5000] * 900, report(2))
        while 2 not in ears.steps():
            await asyncio.sleep(0.01)
        assert len(logs.asked) > 1

    tell(story, pace=replace(QUICK, bytes_per_s=2e6, burst_bytes=2e6, most_behind_s=0.2))


def test_only_what_has_changed_is_handed_over():
    posted: list[Changes] = []
    listening = LogSubscriptions(posted.append)
    for _ in range(3):
        listening.to("default/train", log_of())
        listening.send()
    listening.to("default/train", None)
    listening.to("default/train", None)
    listening.send()
    assert posted == [{"default/train": log_of()}, {"default/train": None}]
    assert not LogSubscriptions().is_on


def test_progress_is_written_less_often_when_there_are_many_jobs():
    listening = LogSubscriptions(lambda changes: None)
    listening.to("a/b", log_of())
    assert listening.show_every_s(5.0) == 5.0
    for number in range(2000):
        listening.to(f"a/{number}", log_of())
    assert listening.show_every_s(5.0) == pytest.approx(100.0, rel=0.01)
