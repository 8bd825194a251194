"""Workers as threads of this process, over real sockets."""

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batuta.backends.local.addresses import PortReservations
from batuta.demo.process_group import PeerLost, ProcessGroup, Worker, join_group

PORTS = PortReservations()


@pytest.fixture
def port():
    return PORTS.reserve("test")


def each(workers: list[Worker], work: Callable[[ProcessGroup], Any], timeout_s: float = 20.0) -> list[Any]:
    """What `work` gives in each worker, or the PeerLost that it ended with."""

    def one(worker: Worker) -> Any:
        try:
            with join_group(worker, timeout_s) as group:
                return work(group)
        except PeerLost as lost:
            return lost

    with ThreadPoolExecutor(len(workers)) as pool:
        return list(pool.map(one, workers))


def workers(size: int, port: int) -> list[Worker]:
    return [Worker(rank, size, "127.0.0.1", (port,), "run") for rank in range(size)]


def test_all_get_the_sum_and_the_note_of_rank_0(port):
    def work(group: ProcessGroup) -> tuple[Any, int]:
        rank = group.worker.rank
        total, note = group.sum(np.array([1.0, 10.0**rank]), note=40 + rank)
        return total.tolist(), note

    assert each(workers(4, port), work) == [([4.0, 1111.0], 40)] * 4


def test_all_get_what_rank_0_shares(port):
    def work(group: ProcessGroup) -> Any:
        return group.share(np.full(3, float(group.worker.rank + 7))).tolist()

    assert each(workers(3, port), work) == [[7.0, 7.0, 7.0]] * 3


def test_alone_no_socket_is_needed():
    with join_group(Worker(), 1.0) as group:
        total, note = group.sum(np.array([2.0]), 1)
    assert (total.tolist(), note) == ([2.0], 1)


def test_vectors_of_another_length_are_not_added(port):
    found = each(workers(2, port), lambda group: group.sum(np.zeros(1 + group.worker.rank)))
    assert "rank 1 sent 16 bytes instead of 8" in str(found[0])
    assert "rank 0 is gone" in str(found[1])


def test_one_that_leaves_is_named_and_the_others_leave_too(port):
    def work(group: ProcessGroup) -> str:
        group.sum(np.zeros(1))
        if group.worker.rank != 2:
            group.sum(np.zeros(1))
        return "left"

    found = each(workers(4, port), work)
    assert "rank 2 is gone" in str(found[0])
    assert found[2] == "left"
    assert {str(one).partition(":")[0] for one in (found[1], found[3])} == {"rank 0 is gone"}


def test_one_that_hangs_is_given_up(port):
    def work(group: ProcessGroup) -> str:
        if group.worker.rank == 1:
            time.sleep(0.6)
            return "slept"
        group.sum(np.zeros(1))
        return "never"

    found = each(workers(2, port), work, timeout_s=0.3)
    assert str(found[0]) == "rank 1 has been silent for 0.3 s"


def test_strangers_and_workers_of_another_run_are_not_let_in(port):
    def work(group: ProcessGroup) -> Any:
        return group.sum(np.array([1.0]))[0].tolist()

    ours = workers(2, port)
    late = replace(ours[1], run="the run before")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(each, ours[:1], work)
        refused = pool.submit(each, [late], work, 0.5)
        while True:
            try:
                stranger = socket.create_connection(("127.0.0.1", port))
            except ConnectionRefusedError:
                time.sleep(0.01)
                continue
            break
        with stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\nHost: somebody else's\r\n\r\n")
            assert "rank 0 did not answer" in str(refused.result()[0])
            second = each(ours[1:], work)
    assert (first.result(), second) == ([[2.0]], [[2.0]])


def test_a_worker_may_come_long_before_rank_0(port):
    def work(group: ProcessGroup) -> Any:
        return group.sum(np.array([1.0]))[0].tolist()

    ours = workers(2, port)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(each, ours[1:], work)
        time.sleep(0.2)
        assert each(ours[:1], work) == [[2.0]]
        assert early.result() == [[2.0]]


def test_a_port_that_is_taken_and_stays_so_is_named(port):
    with socket.create_server(("127.0.0.1", port)):
        found = each(workers(2, port)[:1], lambda group: None, timeout_s=0.2)
    assert f"cannot listen at 127.0.0.1, port {port}" in str(found[0])


def test_the_next_port_is_tried_where_there_is_a_choice(port):
    other = PORTS.reserve("test")
    ours = [replace(worker, ports=(port, other)) for worker in workers(2, port)]
    with socket.create_server(("127.0.0.1", port)) as silent:
        silent.listen()
        found = each(ours, lambda group: group.sum(np.array([1.0]))[0].tolist())
    assert found == [[2.0]] * 2
