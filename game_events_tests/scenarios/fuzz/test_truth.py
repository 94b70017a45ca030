"""What the fuzz says tables must hold follows the documents: rules, kept decisions, erasure. No server is needed."""

from __future__ import annotations

from datetime import UTC, datetime

from game_events_tests.scenarios.fuzz.declared import (
    BELOW,
    DROPPED,
    EXTENSIONS,
    FAILING,
    FIRST,
    HELD,
    KEPT,
    NAMED,
    RULES,
    Event,
    verdict,
)
from game_events_tests.scenarios.fuzz.truth import Config, Truth, kept_outcomes

#: Rejects events without a player, and drops those of 90 and more.
BOTH = RULES.index((NAMED, BELOW))
PLAIN, STRICTER = Config(0, 0), Config(BOTH, 0)


def event(
    number: int = 0, gamer: str | None = "player-1", n: int = 95, *, damaged: bool = False, at: datetime | None = None
) -> Event:
    return Event(number, "jsonl", "uno", gamer, n, None, None, at, damaged=damaged)


def truth_of(*events: Event, config: Config = PLAIN) -> Truth:
    """After a run, and a look that has found all of them."""
    truth = Truth()
    truth.sent(events, ())
    truth.run(config)
    for fate in truth.fates.values():
        fate.settled = True
        fate.configs.clear()
    return truth


def outcomes(truth: Truth, number: int = 0) -> set[str]:
    return {place for place, _ in truth.fates[f"r{number}e"].outcomes}


def test_a_failing_rule_goes_first_then_quarantine_then_drop() -> None:
    assert verdict(BOTH, event()) == DROPPED
    assert verdict(BOTH, event(gamer=None)) == HELD
    assert verdict(BOTH, event(n=1)) == KEPT
    assert verdict(FAILING, event(n=1)) is None


def test_a_row_may_be_gone_if_it_is_old_and_its_game_has_ever_had_a_limit() -> None:
    old, young, without = (event(number, at=at) for number, at in enumerate((FIRST, datetime(9999, 1, 1, tzinfo=UTC), None)))
    truth = truth_of(old, young, without)
    assert not any(map(truth.may_be_expired, truth.fates.values()))
    truth.expiring.add("uno")
    assert [truth.may_be_expired(fate) for fate in truth.fates.values()] == [True, False, False]
    assert kept_outcomes(truth.fates[old.rid]) == {(KEPT, 0)}


def test_a_changed_rule_is_for_later_rows_only() -> None:
    truth = truth_of(event())
    truth.run(STRICTER)
    assert outcomes(truth) == {KEPT}


def test_rules_that_changed_between_a_killed_run_and_the_next_one_leave_several_possibilities() -> None:
    truth = Truth()
    truth.sent([event()], ())
    truth.run(PLAIN)
    truth.run(STRICTER)
    assert outcomes(truth) == {KEPT, DROPPED}


def test_a_full_refresh_decides_again_and_one_that_was_killed_may_have_done_so() -> None:
    truth = truth_of(event())
    truth.decided_again(["uno"], STRICTER, surely=False)
    assert outcomes(truth) == {KEPT, DROPPED}
    truth.decided_again(["uno"], STRICTER, surely=True)
    assert outcomes(truth) == {DROPPED}


def test_a_row_that_is_held_stays_held_if_it_would_only_be_dropped_now() -> None:
    truth = truth_of(event(gamer=""), config=STRICTER)
    assert outcomes(truth) == {HELD}
    dropping = Config(
        next(n for n, rules in enumerate(RULES) if {rule.name for rule, _ in rules} == {"even", "one_session"}), 0
    )
    truth.decided_again(["uno"], dropping, surely=True)
    assert outcomes(truth) == {HELD}


def test_an_erased_person_is_nowhere_later_records_included() -> None:
    truth = truth_of(event(), event(1, damaged=True))
    truth.sent([event(2, damaged=True)], ())
    truth.forgotten("player-1")
    truth.sent([event(3), event(4, damaged=True)], ())
    assert {rid: fate.gone for rid, fate in truth.live.items()} == {"r2e": "maybe", "r4e": "no"}


def test_rows_of_one_game_are_copied_or_left_out_by_a_module() -> None:
    copied = Event(0, "jsonl", "go", None, 4, None, None, None)
    assert [row["part"] for row in EXTENSIONS[2].of(copied)] == [0, 1]
    assert EXTENSIONS[2].of(Event(0, "jsonl", "go", None, 3, None, None, None)) == []
    assert EXTENSIONS[1].of(copied) == [{"twice": 8, "part": None}]
