"""Examples of the planner: each rule of the contract between teams, and traps that other systems fell into."""

from dataclasses import replace

import pytest
from queues import (
    GRACE,
    HOUR,
    NOW,
    effects,
    explained,
    job,
    left,
    node,
    preempted,
    promised,
    reserved,
    rules,
    runs,
    started,
    view,
    workers,
)

from mlplatform.capacity.resources import Request, Resources, WorkerGroup
from mlplatform.errors import SettingsError
from mlplatform_gateway.queue.planner.plan import forecast, plan, queue
from mlplatform_gateway.queue.planner.queue import Caps, JobClass, Notice, Reserve, Start, Team, Usage
from mlplatform_gateway.queue.planner.state import execute

A, B = Team("a", 4, 32), Team("b", 4, 32)
OVERDUE = NOW - 72 * HOUR


# --- one team, nobody added ---


def test_jobs_of_one_team_start_in_order_of_arrival() -> None:
    late, early = job("late", sequence=900), job("early", sequence=800)
    assert started(plan(view([node("n0", 2)], [late, early]))) == ["early", "late"]


def test_class_orders_jobs_of_one_team() -> None:
    waiting = [job("idle", job_class=JobClass.IDLE), job("normal"), job("urgent", job_class=JobClass.URGENT)]
    assert started(plan(view([node("n0", 2)], waiting))) == ["urgent", "normal"]


def test_small_job_starts_beside_blocked_one_without_limits() -> None:
    actions = plan(view([node("n0", 2)], [job("big", request=2), job("small")], [runs("r")]))
    assert started(actions) == ["small"]


def test_overdue_job_keeps_nodes_that_it_needs() -> None:
    big = job("big", request=2, since=OVERDUE)
    actions = plan(view([node("n0", 2)], [big, job("small")], [runs("r")]))
    assert started(actions) == []
    assert rules(actions, "small") == {"reserved"}


def test_overdue_job_leaves_other_nodes_to_others() -> None:
    big = job("big", request=2, since=OVERDUE)
    actions = plan(view([node("n0", 2), node("n1", 1)], [big, job("small")], [runs("r")]))
    assert [(one.job, set(one.placement)) for one in actions if isinstance(one, Start)] == [("small", {"n1"})]


def test_job_that_ends_in_time_is_backfilled() -> None:
    running = [runs("r", ends_by=NOW + 2 * HOUR)]
    waiting = [job("big", request=2), job("long", limit_s=3 * HOUR), job("short", limit_s=HOUR)]
    actions = plan(view([node("n0", 2)], waiting, running))
    assert started(actions) == ["short"]
    assert explained(actions, "big").latest_start == NOW + 2 * HOUR + GRACE


def test_jobs_that_end_at_the_same_time_leave_together() -> None:
    """One of them may have been started by the same plan, before it was killed."""
    running = [runs(name, where={"n0": gpus}, ends_by=NOW + HOUR) for name, gpus in (("r0", 4), ("r1", 1))]
    waiting = [job("big", request=6), job("small", request=2)]
    assert started(plan(view([node("n0", 8)], waiting, running))) == ["small"], "both fit beside each other by then"


def test_job_without_resources_always_starts() -> None:
    plain = job("plain", request=Request(Resources()))
    assert started(plan(view([node("n0", 1)], [plain], [runs("r")]))) == ["plain"]


def test_worker_group_starts_whole_or_not_at_all() -> None:
    nodes = [node("n0", 2), node("n1", 2)]
    assert started(plan(view(nodes, [job("group", request=workers(4))], [runs("r")]))) == []
    assert started(plan(view(nodes, [job("group", request=workers(3))], [runs("r")]))) == ["group"]


def test_never_more_starts_than_ray_reports_free() -> None:
    behind = replace(node("n0", 1), free={"CPU": 64, "GPU": 0})
    actions = plan(replace(view([node("n0", 1)], [job("j")]), nodes=[behind]))
    assert started(actions) == []
    assert rules(actions, "j") == {"ray"}


def test_impossible_job_blocks_nobody() -> None:
    actions = plan(view([node("n0", 1)], [job("never", request=9, since=OVERDUE), job("next")]))
    assert started(actions) == ["next"]
    assert rules(actions, "never") == {"capacity"}


# --- shares ---


def test_idle_share_is_lent() -> None:
    actions = plan(view([node("n0")], [job(f"a{n}", "a") for n in range(8)], teams=[A, B]))
    assert [one.within_share for one in actions if isinstance(one, Start)] == [True] * 4 + [False] * 4


def test_job_within_share_takes_back_what_others_borrowed() -> None:
    running = [runs(f"b{n}", "b", started=NOW - (10 - n) * HOUR) for n in range(8)]
    actions = plan(view([node("n0")], [job("mine", "a", 2)], running, [A, B]))
    assert preempted(actions) == ["b7", "b6"]
    assert reserved(actions) == ["mine"]
    assert "Team a takes back 2 GPUs" in next(one.why for one in actions if getattr(one, "job", "") == "b7")


def test_job_within_share_is_never_preempted() -> None:
    running = [runs(f"b{n}", "b") for n in range(4)] + [runs("big", "a", {"n0": 4})]
    actions = plan(view([node("n0")], [job("more", "a", 1)], running, [A, B]))
    assert preempted(actions) == []
    assert "share" in rules(actions, "more")


def test_job_within_share_is_not_preempted_for_room_in_pieces() -> None:
    running = [runs(f"b{n}", "b", {f"n{n % 2}": 1}) for n in range(4)]
    actions = plan(view([node("n0", 4), node("n1", 4)], [job("mine", "a", 4)], running, [A, B]))
    assert effects(actions) == []
    assert "pieces" in rules(actions, "mine")


def test_whole_job_is_preempted_even_if_it_straddles_the_share() -> None:
    actions = plan(view([node("n0")], [job("mine", "a")], [runs("big", "b", {"n0": 8})], [A, B]))
    assert preempted(actions) == ["big"]


def test_nobody_is_preempted_if_room_would_still_not_suffice() -> None:
    running = [runs("own", "b", {"n0": 2}), runs("lent", "b", {"n0": 1}), runs("stays", "b", {"n0": 1}, stays=True)]
    small = Team("b", 2, 32)
    actions = plan(view([node("n0", 4)], [job("mine", "a", 2)], running, [Team("a", 2, 32), small]))
    assert preempted(actions) == []
    assert "pieces" in rules(actions, "mine")


def test_borrower_that_has_just_started_is_preempted() -> None:
    running = [runs("lent", "b", {"n0": 8}, started=NOW)]
    assert preempted(plan(view([node("n0")], [job("mine", "a")], running, [A, Team("b", 0, 0)]))) == ["lent"]


def test_freed_room_belongs_to_its_claimant() -> None:
    running = [runs("own", "b", {"n0": 6}), runs("dying", "b", {"n0": 1}, notice=Notice(NOW + 60, "mine"))]
    waiting = [job("thief", "b"), job("mine", "a", 2, reserved=Reserve("mine", {"n0": {"GPU": 2}}, NOW + 60))]
    assert effects(plan(view([node("n0")], waiting, running, [A, B]))) == []
    assert started(plan(view([node("n0")], waiting, running[:1], [A, B]))) == ["mine"]


def test_job_with_reserved_room_precedes_more_urgent_one() -> None:
    leaving = runs("dying", "b", {"n0": 2}, notice=Notice(NOW + 60, "mine"))
    waiting = [
        job("mine", "a", 2, reserved=Reserve("mine", {"n0": {"GPU": 2}}, NOW + 60)),
        job("urgent", "a", 2, job_class=JobClass.URGENT),
    ]
    small = [Team("a", 2, 32), Team("b", 0, 0)]
    known = view([node("n0", 2)], waiting, [leaving], small)
    assert promised(known) == {"mine"}
    assert started(plan(left(known, "dying"))) == ["mine"]


def test_wait_for_ray_after_jobs_have_left_is_explained() -> None:
    known = view(
        [node("n0")], [job("mine", "a", 4, reserved=Reserve("mine", {"n0": {"GPU": 4}}, NOW + 60))], [], [A, B]
    )
    lagging = replace(known, nodes=[replace(known.nodes[0], free={"CPU": 64, "GPU": 0})])
    (reason,) = explained(plan(lagging), "mine").reasons
    assert reason.text.endswith("have left; Ray does not list them as gone yet.")


def test_stuck_victim_is_replaced_by_others() -> None:
    running = [
        runs("stuck", "b", {"n0": 4}, notice=Notice(NOW - 61, "mine")),
        runs("other", "b", {"n0": 4}),
    ]
    mine = job("mine", "a", 4, reserved=Reserve("mine", {"n0": {"GPU": 4}}, NOW + 60))
    assert preempted(plan(view([node("n0")], [mine], running, [A, Team("b", 0, 0)]))) == ["other"]


def test_job_starts_elsewhere_if_its_reserved_room_never_becomes_free() -> None:
    """A job that is being stopped, and does not end, has a deadline that moves on."""
    stuck = runs("stopped", "b", {"n0": 4}, notice=Notice(NOW + GRACE))
    mine = job("mine", "a", 4, reserved=Reserve("mine", {"n0": {"GPU": 4}}, NOW - HOUR))
    assert started(plan(view([node("n0", 4), node("n1", 4)], [mine], [stuck], [A, B]))) == ["mine"]


def test_small_jobs_start_beside_program_outside_of_jobs() -> None:
    """A notebook that holds a CPU of each node keeps a job waiting that needs them all, and others for a minute."""
    nodes = [node(name, 4, cpus=8) for name in ("n0", "n1")]
    whole = job("whole", request=Request(Resources(8), WorkerGroup(1, 8)))
    known = view(nodes, [whole, job("small", request=Request(Resources(1)))])
    outside = replace(known, nodes=[replace(one, free={**one.free, "CPU": 7}) for one in known.nodes])
    later = replace(execute(outside, effects(plan(outside))), now=NOW + 61)
    assert started(plan(later)) == ["small"]
    alone = [one for one in later.waiting if one.id == "whole"]
    assert rules(plan(replace(later, waiting=alone)), "whole") == {"ray"}


def test_room_left_for_overdue_job_is_held_while_ray_lags() -> None:
    placement = {"n0": {"GPU": 4.0}}
    big = job("big", "b", 4, since=OVERDUE, reserved=Reserve("big", placement, NOW + 60))
    known = view([node("n0", 4)], [big, job("small", "a")], [], POOR)
    lags = replace(known, nodes=[replace(known.nodes[0], free={"CPU": 64, "GPU": 3})])
    assert started(plan(lags)) == []
    assert promised(lags) == {"big"}
    assert started(plan(known)) == ["big"]


def test_leaving_jobs_count_once_for_promises_and_reservations() -> None:
    """Job `second` needs what `first` was promised, too, so room is kept for it only once `long` has ended."""
    running = [
        runs("leaves", "b", {"n0": 4}, notice=Notice(NOW + GRACE, "first")),
        runs("long", "b", {"n1": 4}, ends_by=NOW + 5 * HOUR, stays=True),
    ]
    waiting = [
        job("first", "a", 4, reserved=Reserve("first", {"n0": {"GPU": 4}}, NOW + GRACE)),
        job("second", "a", 4),
    ]
    teams = [Team("a", 8, 64), Team("b", 0, 0)]
    actions = plan(view([node("n0", 4), node("n1", 4)], waiting, running, teams))
    assert explained(actions, "second").latest_start == NOW + 5 * HOUR + GRACE


def test_second_claim_uses_what_the_first_leaves_over() -> None:
    running = [runs("big", "b", {"n0": 8})]
    actions = plan(view([node("n0")], [job("one", "a"), job("two", "a")], running, [A, Team("b", 0, 0)]))
    assert preempted(actions) == ["big"]
    assert reserved(actions) == ["one", "two"]


def test_shares_shrink_in_proportion_to_lost_nodes() -> None:
    nodes = [node("n0", 4), node("n1", 4, alive=False)]
    running = [runs("a0", "a", {"n0": 2}), runs("b0", "b", {"n0": 2})]
    actions = plan(view(nodes, [job("mine", "a")], running, [A, B]))
    assert preempted(actions) == []
    assert "2 GPUs" in explained(actions, "mine").reasons[1].text


def test_job_within_share_ignores_room_kept_for_borrowers() -> None:
    running = [runs("r", "b", {"n0": 4}, ends_by=NOW + HOUR)]
    waiting = [job("big", "b", 8, since=OVERDUE), job("mine", "a", 4)]
    assert started(plan(view([node("n0")], waiting, running, [A, B]))) == ["mine"]


POOR = [Team("a", 0, 0), Team("b", 0, 0)]


def test_no_room_is_kept_for_borrower_though_it_is_overdue() -> None:
    running = [runs("r", "b", {"n0": 4}, ends_by=NOW + HOUR)]
    waiting = [job("big", "b", 8, since=OVERDUE), job("long", "a", 4, limit_s=9 * HOUR)]
    assert started(plan(view([node("n0")], waiting, running, POOR))) == ["long"]


@pytest.mark.parametrize(("since", "leaving"), [(NOW - 71 * HOUR, []), (OVERDUE, ["two", "one"])])
def test_borrowers_leave_for_overdue_job_that_came_before_them(since: float, leaving: list[str]) -> None:
    big = job("big", "b", 8, since=since)
    running = [runs("one", "a", {"n0": 4}, started=NOW - 2), runs("two", "b", {"n0": 4}, started=NOW - 1)]
    known = view([node("n0")], [big], running, POOR)
    actions = plan(known)
    assert preempted(actions) == leaving
    assert promised(execute(known, effects(actions))) == ({"big"} if leaving else set())
    whys = [one.why for one in actions if getattr(one, "job", "") == "one"]
    assert all("big (b-person, team b), which came before it, has waited for 72.0 h" in why for why in whys)


@pytest.mark.parametrize("earlier", ["older", "within"])
def test_overdue_borrower_waits_for_older_ones_and_those_within_shares(earlier: str) -> None:
    older = runs("older", "a", {"n0": 4})
    big = job("big", "b", 8, since=OVERDUE)
    running = [older if earlier == "older" else runs("within", "a", {"n0": 4}), runs("young", "b", {"n0": 4})]
    shares = POOR if earlier == "older" else [A, Team("b", 0, 0)]
    assert effects(plan(view([node("n0")], [big], running, shares))) == []


def test_team_that_borrowed_less_is_first_beyond_the_shares() -> None:
    teams = [Team("a", 0, 0), Team("b", 0, 0)]
    waiting = [job("a0", "a"), job("b0", "b")]
    usage = Usage(borrowed={"a": 50.0, "b": 10.0})
    assert started(plan(view([node("n0", 1)], waiting, teams=teams, usage=usage))) == ["b0"]


def test_weight_divides_what_a_team_borrowed() -> None:
    teams = [Team("a", 0, 0, weight=10), Team("b", 0, 0)]
    waiting = [job("b0", "b"), job("a0", "a")]
    usage = Usage(borrowed={"a": 50.0, "b": 10.0})
    assert started(plan(view([node("n0", 1)], waiting, teams=teams, usage=usage))) == ["a0"]


def test_team_of_weight_zero_comes_last() -> None:
    teams = [Team("a", 0, 0, weight=0), Team("b", 0, 0)]
    waiting = [job("a0", "a"), job("b0", "b")]
    usage = Usage(borrowed={"b": 1e9})
    assert started(plan(view([node("n0", 1)], waiting, teams=teams, usage=usage))) == ["b0"]


@pytest.mark.parametrize("weight", [float("nan"), -1.0, float("inf")])
def test_weight_that_is_not_a_number_is_rejected(weight: float) -> None:
    with pytest.raises(SettingsError, match="weight of team a"):
        Team("a", 0, 0, weight=weight)


def test_surplus_is_divided_between_teams_without_past_use() -> None:
    teams = [Team("a", 0, 0), Team("b", 0, 0)]
    waiting = [job(f"a{n}", "a") for n in range(4)] + [job(f"b{n}", "b") for n in range(4)]
    assert sorted(started(plan(view([node("n0", 4)], waiting, teams=teams)))) == ["a0", "a1", "b0", "b1"]


def test_overdue_job_heads_the_surplus() -> None:
    teams = [Team("a", 0, 0), Team("b", 0, 0)]
    waiting = [job("b0", "b"), job("old", "a", since=OVERDUE)]
    usage = Usage(borrowed={"a": 1e9})
    assert started(plan(view([node("n0", 1)], waiting, teams=teams, usage=usage))) == ["old"]


def test_class_does_not_order_jobs_of_two_teams() -> None:
    teams = [Team("a", 0, 0), Team("b", 0, 0)]
    waiting = [job("a0", "a"), job("b0", "b", job_class=JobClass.URGENT)]
    assert started(plan(view([node("n0", 1)], waiting, teams=teams))) == ["a0"]


def test_person_who_used_less_is_first_in_the_team() -> None:
    waiting = [job("j0", person="eve"), job("j1", person="bob")]
    usage = Usage(persons={"eve": 20.0, "bob": 10.0})
    assert started(plan(view([node("n0", 1)], waiting, usage=usage))) == ["j1"]


# --- caps and groups ---


@pytest.mark.parametrize(
    ("team", "rule"),
    [
        (Team("default", 0, 0, caps=Caps(gpus=2)), "cap-team"),
        (Team("default", 0, 0, caps=Caps(running=2)), "cap-team"),
        (Team("default", 0, 0, person_caps=Caps(gpus=2)), "cap-person"),
        (Team("default", 0, 0, person_caps=Caps(running=2)), "cap-person"),
    ],
)
def test_cap_limits_what_runs_at_the_same_time(team: Team, rule: str) -> None:
    actions = plan(view([node("n0")], [job(f"j{n}") for n in range(4)], [runs("r")], [team]))
    assert started(actions) == ["j0"]
    assert rules(actions, "j1") == {rule}


def test_group_runs_as_many_jobs_as_it_may() -> None:
    waiting = [job(f"j{n}", group="sweep", at_most=3) for n in range(4)]
    actions = plan(view([node("n0")], waiting, [runs("r", group="sweep")]))
    assert started(actions) == ["j0", "j1"]
    assert rules(actions, "j2") == {"group"}


# --- limits and idle jobs ---


def test_job_at_its_limit_stays_while_nobody_waits() -> None:
    running = [runs("over", where={"n0": 1}, ends_by=NOW - HOUR)]
    assert effects(plan(view([node("n0", 1)], [], running))) == []
    assert preempted(plan(view([node("n0", 1)], [job("j")], running))) == ["over"]


def test_notice_of_a_limit_names_no_claimant() -> None:
    running = [runs("over", "a", {"n0": 1}, ends_by=NOW - 1)]
    actions = plan(view([node("n0", 1)], [job("j", "b")], running, [A, B]))
    assert [one.claimant for one in actions if hasattr(one, "claimant")] == [""]


def test_idle_job_is_reclaimed_even_within_its_share() -> None:
    running = [runs("lazy", "a", {"n0": 4}, idle=True), runs("own", "b", {"n0": 4})]
    assert preempted(plan(view([node("n0")], [job("j", "b", 2)], running, [A, B]))) == ["lazy"]


def test_borrower_leaves_though_its_team_has_an_idle_job_elsewhere() -> None:
    """Without the idle job, the team would be within its share; but that job helps nobody, so it stays."""
    running = [
        runs("lazy", "b", {"n0": 1}, idle=True),
        runs("more", "b", {"n1": 2}, started=NOW - HOUR),
        runs("other", "c", {"n2": 1}),
    ]
    nodes, teams = [node("n0", 1), node("n1", 2), node("n2", 1)], [Team("a", 2, 32), Team("b", 2, 32), Team("c", 0, 0)]
    assert preempted(plan(view(nodes, [job("mine", "a", 2)], running, teams))) == ["more"]


def test_room_of_idle_job_is_for_whom_it_left() -> None:
    """Else the idle job, which is within its share, would start again before the job for which it has left."""
    running = [runs("lazy", "a", {"n0": 4}, idle=True), runs("own", "b", {"n0": 4})]
    before = view([node("n0")], [job("j", "b", 2)], running, [A, B])
    actions = plan(before)
    assert promised(before) == {"j"}
    after = left(execute(before, effects(actions)), "lazy")
    first = plan(replace(after, waiting=(*after.waiting, job("lazy", "a", 4, yields_until=NOW + 1))))
    assert started(first)[0] == "j"
    assert next(action.within_share for action in first if isinstance(action, Start)) is False


def test_job_with_idle_gpus_takes_nothing_back_for_a_while() -> None:
    before = view([node("n0")], [job("lazy", "a", 4, yields_until=NOW + 1)], [runs("r", "b", {"n0": 8})], [A, B])
    assert effects(plan(before)) == []
    assert rules(plan(before), "lazy") == {"yields"}
    assert preempted(plan(replace(before, now=NOW + 1))) == ["r"]


def test_job_with_idle_gpus_starts_where_they_are_free() -> None:
    waiting = [job("lazy", "a", 4, yields_until=NOW + 1)]
    assert started(plan(view([node("n0")], waiting, [runs("r", "b", {"n0": 4})], [A, B]))) == ["lazy"]


def test_job_with_idle_gpus_delays_no_other_of_its_team() -> None:
    waiting = [job("lazy", "a", 4, yields_until=NOW + 1), job("mine", "a", 4)]
    actions = plan(view([node("n0")], waiting, [runs("r", "b", {"n0": 8})], [A, B]))
    assert reserved(actions) == ["mine"]


def test_each_waiting_job_takes_back_its_own_jobs_at_limit() -> None:
    running = [runs(f"over{n}", ends_by=NOW - 1) for n in range(3)]
    actions = plan(view([node("n0", 3)], [job("j0"), job("j1")], running))
    assert len(preempted(actions)) == 2


def test_room_of_job_at_its_limit_is_claimed() -> None:
    """Else a job that came later could start in a part of it."""
    before = view([node("n0", 2)], [job("j", request=2)], [runs("over", where={"n0": 2}, ends_by=NOW - 1)])
    actions = plan(before)
    assert rules(actions, "j") == {"limit"}
    after = left(execute(before, actions), "over")
    urgent = job("urgent", job_class=JobClass.URGENT)
    assert started(plan(replace(after, waiting=(*after.waiting, urgent)))) == ["j"]


# --- explanations ---


def test_first_waiting_job_breaks_ties_between_teams() -> None:
    """The jobs that wait when it is their turn count: a plan that was killed after its first start decides alike."""
    waiting, teams = [job("a0", "a"), job("b0", "b"), job("a1", "a")], [Team("a", 1, 32), Team("b", 0, 0)]
    assert started(plan(view([node("n0", 2)], waiting, teams=teams))) == ["a0", "b0"]


def test_waiting_jobs_are_explained_in_their_order() -> None:
    waiting = [job(f"j{n}") for n in range(5)]
    says = queue(view([node("n0", 1)], waiting, [runs("r")]))
    assert [say.job for say in says] == [f"j{n}" for n in range(5)]


def test_overdue_job_is_first_after_the_clock_was_set_back() -> None:
    says = queue(view([node("n0", 1)], [job("new"), job("old", since=OVERDUE), job("last")], [runs("r")]))
    assert [say.job for say in says] == ["old", "new", "last"]


def test_forecast_runs_forward_by_the_limits() -> None:
    running = [runs("r", ends_by=NOW + HOUR)]
    waiting = [job("j0", limit_s=HOUR), job("j1", limit_s=HOUR)]
    leave = GRACE + 60
    expected = {"j0": NOW + HOUR + leave, "j1": NOW + 2 * (HOUR + leave)}
    assert forecast(view([node("n0", 1)], waiting, running)) == expected


def test_forecast_is_unknown_without_limits() -> None:
    assert forecast(view([node("n0", 1)], [job("j")], [runs("r")])) == {"j": None}


@pytest.mark.parametrize("gone", [0, 2])
def test_room_promised_to_overdue_job_goes_to_job_within_share(gone: int) -> None:
    teams = [Team("lender", 8, 64), Team("borrower", 0, 0)]
    overdue = job("overdue", "borrower", workers(8), since=NOW - 100 * HOUR)
    borrowers = [runs(f"r{number}", "borrower", {"n0": 1}) for number in range(8)]
    before = view([node("n0")], [overdue], borrowers, teams)
    after = execute(before, effects(plan(before)))
    assert promised(after) == {"overdue"}
    for number in range(gone):
        after = left(after, f"r{number}")
    owed = job("owed", "lender", workers(4))
    after = replace(after, waiting=(*after.waiting, owed))
    assert promised(after) == {"owed"}
    assert preempted(plan(after)) == []


def test_room_left_for_overdue_job_goes_to_job_within_share() -> None:
    teams = [Team("lender", 8, 64), Team("borrower", 0, 0)]
    overdue = job("overdue", "borrower", workers(8), since=NOW - 100 * HOUR)
    before = view([node("n0")], [overdue], [runs(f"r{number}", "borrower", {"n0": 4}) for number in range(2)], teams)
    after = left(execute(before, effects(plan(before))), "r0")
    owed = job("owed", "lender", workers(4))
    assert started(plan(replace(after, waiting=(*after.waiting, owed)))) == ["owed"]
