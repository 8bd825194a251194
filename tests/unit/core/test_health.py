"""Stories of GPUs that fall ill: who goes out of service, who stays, and how they come back."""

from dataclasses import replace

import pytest

from batuta.core.health import HealthStateMachine, from_plain, to_plain
from batuta.core.health_record import Alert, BurnIn, Cordon, Mend, PutBack, RestartJob, State, TakeOut, Target
from batuta.core.health_rules import Action, Finding, HealthLimits, HealthRules, Source
from batuta.gpu.health.rules import read_rules

RULES = read_rules()
HOUR_S = 3600.0
OFF_THE_BUS = "Xid 79: GPU has fallen off the bus"


def book_of(nodes: int = 8, gpus: int = 8, **limits) -> HealthStateMachine:
    rules = replace(RULES, limits=replace(HealthLimits(), **limits))
    book = HealthStateMachine(rules)
    for k in range(nodes):
        book.add_node(f"n{k}", gpus, "pool")
    return book


def xid(code: int, node: str = "n0", gpu: int | None = 0, *jobs: str, at_s: float = 0.0, text: str = ""):
    return Finding(at_s, node, Source.XID, code, text, gpu, jobs)


def fails_its_way_to_probation(book: HealthStateMachine, target: Target, code: int, now_s: float) -> float:
    """Falls ill, is mended, passes; when its probation ends."""
    gpu = None if target.gpu < 0 else target.gpu
    assert book.found(xid(code, target.node, gpu, at_s=now_s))
    assert book.mended(target, now_s) == [BurnIn(target)]
    assert book.burnt_in(target, True, "", now_s) == []
    return book.look(target).ends_s


# ---------------------------------------------------------------------------------- application errors


@pytest.mark.parametrize("code", [13, 31, 32, 43, 45, 68, 69, 80])
def test_an_application_error_restarts_its_job_and_takes_nothing_out(code):
    book = book_of()
    (order,) = book.found(xid(code, "n0", 3, "j1"))
    assert isinstance(order, RestartJob)
    assert (order.job, order.target) == ("j1", Target("n0", 3))
    assert not book.out
    assert book.look(Target("n0", 3)).state is State.SUSPECT


def test_one_job_that_fails_again_and_again_is_never_the_gpus_fault():
    book = book_of()
    for k in range(20):
        assert book.found(xid(31, "n0", 3, "j1", at_s=k * 600.0))
    assert not book.out


def test_the_same_error_in_three_different_jobs_takes_out_the_gpu_and_nothing_else():
    book = book_of()
    book.found(xid(31, "n0", 3, "j1", at_s=0.0))
    book.found(xid(31, "n0", 3, "j2", at_s=HOUR_S))
    orders = book.found(xid(31, "n0", 3, "j3", at_s=2 * HOUR_S))
    reason = "Xid 31: MMU page fault, in 3 different jobs"
    assert orders == [
        TakeOut(Target("n0", 3), reason),
        Mend(Target("n0", 3), Action.RESET_GPU, reason),
    ]
    assert dict(book.out) == {Target("n0", 3): reason}


LINE = "CUDA error: uncorrectable ECC error encountered"


def test_jobs_that_are_not_believed_take_nothing_out_however_many_say_the_same():
    book = book_of()
    for k in range(10):
        found = Finding(k * HOUR_S, "n0", Source.LOG, text=LINE, gpu=3, jobs=(f"j{k}",), is_hearsay=True)
        (order,) = book.found(found)
        assert isinstance(order, RestartJob)
    assert not book.out
    believed = replace(found, time_s=11 * HOUR_S, jobs=("root",), is_hearsay=False)
    assert isinstance(book.found(believed)[0], TakeOut)


def test_what_takes_out_hardware_at_once_is_a_suspicion_where_jobs_are_not_believed():
    rule = RULES.find(Source.LOG, 0, LINE)
    assert rule is not None
    book = HealthStateMachine(replace(RULES, rules=(replace(rule, action=Action.REBOOT),)))
    book.add_node("n0", 8, "pool")
    assert book.found(Finding(0.0, "n0", Source.LOG, text=LINE, gpu=3, jobs=("j1",), is_hearsay=True)) == []
    assert not book.out
    assert book.look(Target("n0", 3)).state is State.SUSPECT


LOST = Finding(0.0, "n0", Source.NVML, 1, "lost", 3)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["NVML first", "log first"])
def test_the_drivers_word_for_an_illness_wins_whoever_is_heard_first(order):
    book, found = book_of(), (LOST, xid(79, "n0", 3))
    for k in order:
        book.found(replace(found[k], time_s=float(order.index(k))))
    assert book.look(Target("n0")).reason == OFF_THE_BUS
    assert book.look(Target("n0")).since_s == 0.0


def test_what_the_driver_says_much_later_is_another_story():
    book = book_of()
    book.found(LOST)
    before = book.look(Target("n0")).reason
    book.found(xid(79, "n0", 3, at_s=HOUR_S))
    assert book.look(Target("n0")).reason == before == "lost: GPU does not answer any more"


def test_a_suspicion_restarts_nothing_until_three_jobs_share_it():
    book = book_of()
    for k, job in enumerate(("j1", "j2")):
        suspicion = Finding(k * HOUR_S, "n0", Source.BEHAVIOUR, text="a straggler", jobs=(job,))
        assert book.found(suspicion) == []
    assert book.look(Target("n0")).state is State.SUSPECT
    orders = book.found(Finding(2 * HOUR_S, "n0", Source.BEHAVIOUR, text="a straggler", jobs=("j3",)))
    reason = "jobs run slower here than elsewhere, in 3 different jobs"
    assert orders[0] == TakeOut(Target("n0"), reason)


def test_a_figure_that_is_too_high_acts_by_its_rule():
    book = book_of()
    assert book.found(Finding(1.0, "n0", Source.NVML, 96, "temperature", 2)) == []
    assert book.look(Target("n0", 2)).reason == "temperature 96 °C: GPU is too hot"
    orders = book.found(Finding(1.0, "n0", Source.NVML, 1, "remap-failed", 3))
    assert orders == [
        TakeOut(Target("n0", 3), "remap-failed: no spare memory row is left"),
        Mend(Target("n0", 3), Action.REPLACE, "remap-failed: no spare memory row is left"),
    ]


def test_three_jobs_on_different_gpus_with_different_errors_or_long_ago_prove_nothing():
    book = book_of()
    book.found(xid(31, "n0", 0, "j1"))
    book.found(xid(31, "n0", 1, "j2"))
    book.found(xid(13, "n0", 0, "j3"))
    book.found(xid(31, "n0", 0, "j4", at_s=HOUR_S))
    book.found(xid(31, "n0", 0, "j5", at_s=30 * HOUR_S))
    assert not book.out


def test_the_same_line_printed_for_each_channel_restarts_the_job_once():
    book = book_of()
    orders = [order for k in range(8) for order in book.found(xid(31, "n0", 0, "j1", at_s=k * 0.01))]
    assert [order.job for order in orders if isinstance(order, RestartJob)] == ["j1"]


def test_a_cleanup_after_another_error_says_nothing_new():
    book = book_of()
    assert len(book.found(xid(31, "n0", 0, "j1", at_s=10.0))) == 1
    assert book.found(xid(45, "n0", 0, "j1", at_s=10.1)) == []
    assert len(book.found(xid(45, "n0", 0, "j1", at_s=500.0))) == 1


def test_jobs_that_share_a_gpu_count_once_for_one_error():
    book = book_of()
    restarted = book.found(xid(31, "n0", 0, "j1", "j2", "j3"))
    assert [order.job for order in restarted if isinstance(order, RestartJob)] == ["j1", "j2", "j3"]
    assert not book.out


def test_a_suspicion_is_forgotten_when_nothing_follows():
    book = book_of()
    book.found(xid(31, "n0", 0, "j1"))
    assert book.passes(23 * HOUR_S) == []
    assert book.look(Target("n0", 0)).state is State.SUSPECT
    assert book.passes(25 * HOUR_S) == []
    assert book.look(Target("n0", 0)).state is State.HEALTHY


def test_what_all_ranks_print_when_one_node_fails_is_held_against_none():
    book = book_of()
    text = "[rank3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    for k in range(9):
        finding = Finding(k * 600.0, "n0", Source.LOG, text=text, jobs=(f"j{k}",))
        (order,) = book.found(finding)
        assert isinstance(order, RestartJob)
    assert not book.out


# ---------------------------------------------------------------------------------- hardware


@pytest.mark.parametrize("code", [46, 48, 62, 64, 74, 94, 95, 109, 110, 119, 120, 136, 140, 143, 155, 158])
def test_an_error_of_one_gpu_takes_out_that_gpu_only(code):
    book = book_of()
    taken, mend = book.found(xid(code, "n2", 5, "j1"))
    assert isinstance(taken, TakeOut)
    assert isinstance(mend, Mend)
    assert (taken.target, mend.remedy) == (Target("n2", 5), Action.RESET_GPU)


def test_a_gpu_that_fell_off_the_bus_takes_its_node_with_it_for_a_reboot():
    book = book_of()
    assert book.found(xid(79, "n2", 5, "j1")) == [
        TakeOut(Target("n2"), OFF_THE_BUS),
        Mend(Target("n2"), Action.REBOOT, OFF_THE_BUS),
    ]
    assert book.found(xid(79, "n2", 5, "j1", at_s=1.0)) == [], "the same again orders nothing new"
    record = book.look(Target("n2"))
    assert (record.state, record.reason, record.who) == (State.ILL, OFF_THE_BUS, "health")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", Action.RESET_GPU),
        ("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", Action.REBOOT),
        (
            "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x4 (Drain and Reset)",
            Action.RESET_GPU,
        ),
        ("GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)", None),
    ],
)
def test_what_the_driver_asks_for_is_done(text, action):
    orders = book_of().found(xid(154, text=text))
    assert [order.remedy for order in orders if isinstance(order, Mend)] == ([action] if action else [])


def test_a_row_that_waits_for_a_reset_waits_until_no_job_has_the_gpu():
    book, gpu = book_of(), Target("n0", 2)
    assert book.found(xid(63, "n0", 2, "j1")) == []
    assert book.passes(HOUR_S, idle=[Target("n0", 1)]) == []
    assert book.passes(100 * HOUR_S) == [], "it is not forgotten either"
    assert [type(order) for order in book.passes(101 * HOUR_S, idle=[gpu])] == [TakeOut, Mend]


def test_findings_about_what_nobody_knows_are_of_no_consequence():
    book = book_of(1, 2)
    assert book.found(xid(79, "elsewhere", 0)) == []
    assert book.found(xid(79, "n0", 2)) == []
    assert book.found(xid(777, "n0", 0)) == []
    assert not book.out


def test_a_worse_error_asks_for_more():
    book, gpu = book_of(), Target("n0", 0)
    book.found(xid(48))
    (mend,) = book.found(xid(54, at_s=1.0))
    assert isinstance(mend, Mend)
    assert (mend.target, mend.remedy) == (gpu, Action.REPLACE)
    assert book.found(xid(48, at_s=2.0)) == [], "a lesser one does not"


# ---------------------------------------------------------------------------------- prove and return


def test_the_way_back_is_a_burn_in_and_a_probation():
    book, node = book_of(), Target("n0")
    book.found(xid(79))
    assert book.passes(1e9) == [], "by itself nothing becomes well"
    assert book.mended(node, 1e9, "ann") == [BurnIn(node)]
    assert book.burnt_in(node, True, "", 1e9 + 60.0) == []
    assert book.look(node).state is State.PROBATION
    assert book.passes(1e9 + 60.0 + 1799.0) == []
    assert book.out
    (back,) = book.passes(1e9 + 60.0 + 1800.0)
    assert isinstance(back, PutBack)
    assert back.target == node
    assert not book.out


def test_a_burn_in_that_fails_keeps_it_out_and_asks_for_more():
    book, gpu = book_of(), Target("n0", 0)
    book.found(xid(119))
    remedies = []
    for k in range(3):
        book.mended(gpu, k * 100.0)
        (mend,) = book.burnt_in(gpu, False, "17 wrong bits", k * 100.0 + 50.0)
        assert isinstance(mend, Mend)
        remedies.append(mend.remedy)
    assert remedies == [Action.REBOOT, Action.REPLACE, Action.REPLACE]
    assert book.look(gpu).reason == "the burn-in failed: 17 wrong bits"
    assert book.passes(1e9) == []
    assert gpu in book.out


def test_flapping_doubles_the_probation_up_to_the_longest():
    book, gpu, now_s = book_of(longest_probation_s=10_000.0), Target("n0", 0), 0.0
    lengths = []
    for _ in range(5):
        ends_s = fails_its_way_to_probation(book, gpu, 48, now_s)
        lengths.append(ends_s - now_s)
        assert len(book.passes(ends_s)) == 1
        now_s = ends_s + HOUR_S
    assert lengths == [1800.0, 3600.0, 7200.0, 10_000.0, 10_000.0]


def test_after_a_calm_week_the_probation_is_short_again():
    book, gpu = book_of(), Target("n0", 0)
    ends_s = fails_its_way_to_probation(book, gpu, 48, 0.0)
    book.passes(ends_s)
    again_s = ends_s + 8 * 24 * HOUR_S
    assert fails_its_way_to_probation(book, gpu, 48, again_s) - again_s == 1800.0


def test_an_error_during_probation_begins_all_again_with_a_longer_one():
    book, gpu = book_of(), Target("n0", 0)
    fails_its_way_to_probation(book, gpu, 48, 0.0)
    (mend,) = book.found(xid(48, at_s=100.0))
    assert isinstance(mend, Mend)
    assert book.look(gpu).state is State.ILL
    book.mended(gpu, 200.0)
    book.burnt_in(gpu, True, "", 300.0)
    assert book.look(gpu).ends_s == 300.0 + 3600.0


def test_a_line_from_before_the_repair_that_is_read_late_changes_nothing():
    book, gpu = book_of(), Target("n0", 0)
    book.found(xid(48, at_s=100.0))
    book.mended(gpu, 200.0)
    assert book.found(xid(48, at_s=150.0)) == []
    assert book.look(gpu).state is State.BURN_IN


# ------------------------------------------------------------------------------------------------- guard rail


def test_with_half_of_a_pool_failing_at_once_no_more_than_the_share_goes_and_people_are_called():
    book = book_of(nodes=8, share=0.25)
    orders = [order for k in range(4) for order in book.found(xid(79, f"n{k}", 0, f"j{k}", at_s=float(k)))]
    assert [order.target.node for order in orders if isinstance(order, TakeOut)] == ["n0", "n1"]
    assert [order.target.node for order in orders if isinstance(order, Alert)] == ["n2", "n3"]
    assert [order.job for order in orders if isinstance(order, RestartJob)] == ["j2", "j3"]
    assert sorted(target.node for target in book.out) == ["n0", "n1"]
    assert book.passes(HOUR_S) == [], "waiting alone makes no room"


def test_who_was_held_goes_when_another_has_come_back():
    book = book_of(nodes=4, share=0.25)
    ends_s = fails_its_way_to_probation(book, Target("n0"), 79, 0.0)
    (alert,) = book.found(xid(79, "n1", 0, at_s=1.0))
    assert isinstance(alert, Alert)
    orders = book.passes(ends_s)
    assert [(type(order), order.target.node) for order in orders if not isinstance(order, RestartJob)] == [
        (PutBack, "n0"),
        (TakeOut, "n1"),
        (Mend, "n1"),
    ]


def test_single_gpus_count_as_what_they_are():
    book = book_of(nodes=2, gpus=8, share=0.25)
    taken = [
        order
        for gpu in range(8)
        for order in book.found(xid(48, "n0", gpu, at_s=float(gpu)))
        if isinstance(order, TakeOut)
    ]
    assert len(taken) == 4


def test_in_a_small_pool_one_may_always_go_unless_the_share_is_nothing():
    book = book_of(nodes=2, share=0.25)
    assert [type(order) for order in book.found(xid(79))] == [TakeOut, Mend]
    careful = book_of(nodes=2, share=0.0)
    assert [type(order) for order in careful.found(xid(79))] == [Alert]


def test_a_pool_is_not_charged_for_another():
    book = book_of(nodes=4, share=0.25)
    book.add_node("other", 8, "small")
    book.found(xid(79, "n0"))
    assert [type(order) for order in book.found(xid(79, "other"))] == [TakeOut, Mend]


# ---------------------------------------------------------------------------------- humans


def test_a_humans_cordon_is_never_undone():
    book, node = book_of(), Target("n0")
    book.cordoned("n0", "ann", 5.0)
    ends_s = fails_its_way_to_probation(book, node, 79, 0.0)
    assert book.passes(ends_s) == []
    assert book.look(node).state is State.HEALTHY
    assert book.cordons == {"n0": Cordon("ann", 5.0)}


def test_a_human_who_lifts_their_own_cordon_does_not_lift_that_of_an_ill_node():
    book = book_of()
    book.cordoned("n0", "ann", 5.0)
    book.found(xid(79))
    assert book.uncordoned("n0", "ann", 10.0) == [TakeOut(Target("n0"), OFF_THE_BUS)]
    assert Target("n0") in book.out


def test_a_human_may_overrule_what_the_guard_rail_holds():
    book = book_of(nodes=2, share=0.0)
    book.found(xid(79))
    book.uncordoned("n0", "ann", 10.0)
    assert book.standing() == [], "no alert stands any more"
    assert book.look(Target("n0")).state is State.HEALTHY


def test_a_human_may_overrule_and_a_relapse_counts_as_flapping():
    book, node = book_of(), Target("n0")
    book.found(xid(79))
    assert book.uncordoned("n0", "ann", 10.0) == []
    assert not book.out
    assert book.look(node).who == "ann"
    again_s = HOUR_S
    assert fails_its_way_to_probation(book, node, 79, again_s) - again_s == 3600.0


# ---------------------------------------------------------------------------------- restarts


def test_after_a_restart_all_that_stands_is_ordered_again():
    book = book_of()
    book.found(xid(79, "n0"))
    book.found(xid(48, "n1", 3))
    book.mended(Target("n1", 3), 5.0)
    again = from_plain(book.rules, to_plain(book))
    assert [type(order) for order in again.standing()] == [TakeOut, Mend, TakeOut, BurnIn]
    assert to_plain(again) == to_plain(book)


@pytest.mark.parametrize("plain", [{}, {"form": 2}, {"form": 1}, {"form": 1, "nodes": [], "cordons": {}}])
def test_records_that_are_not_understood_are_refused(plain):
    with pytest.raises(ValueError, match="health records"):
        from_plain(HealthRules(()), plain)


def test_a_node_that_is_gone_for_good_is_forgotten():
    book = book_of()
    book.found(xid(79, "n0"))
    book.remove_node("n0")
    assert not book.out
    assert book.standing() == []
