"""Which names become games, and how runs and books are reported."""

import json
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.lakehouse.tables import is_game
from game_events.pipeline.checks.reconcile import GameCounts, Reconciliation
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.result import TableReport
from game_events.workers.fanout import INVALID, NO_NAME, NOT_ALLOWED, Routing

HOSTILE = [None, "", "unified", "../../etc", "Rummy", "🎲", "a" * 300, "a/b", "a\n", 7, b"uno"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("routing", [Routing(), Routing(frozenset({"uno"})), Routing(only=frozenset({"uno"}))])
def test_a_hostile_name_gets_no_table_whatever_is_allowed(name, routing):
    assert routing.refusal(name) == INVALID


def test_rows_without_a_name_are_told_apart_where_not_every_type_is_decoded():
    routing = Routing(unnamed=NO_NAME)
    assert [routing.refusal(name) for name in (None, "", "../x", "uno")] == [NO_NAME, INVALID, INVALID, None]


def test_without_an_allow_list_every_good_name_is_routed():
    assert Routing().refusal("uno") is None


def test_an_allow_list_lets_in_what_it_names():
    routing = Routing(frozenset({"uno"}))
    assert (routing.refusal("uno"), routing.refusal("rummy")) == (None, NOT_ALLOWED)


def test_a_pass_for_some_games_skips_the_others_without_judging_them():
    routing, refused = Routing(only=frozenset({"uno"})), {}
    assert [routing.takes(name, 1, refused) for name in ("uno", "rummy", None)] == [True, False, False]
    assert refused == {}
    assert Routing().takes("rummy", 1, refused)


def test_refused_rows_are_counted_by_name_and_those_of_invalid_names_together():
    routing, refused = Routing(frozenset({"uno"})), {}
    taken = [routing.takes(name, 2, refused) for name in ("uno", "rummy", "../x", None, "rummy")]
    assert (taken, refused) == ([True, False, False, False, False], {NOT_ALLOWED: {"rummy": 4}, INVALID: {"": 4}})


def test_a_routing_survives_the_way_to_a_worker():
    routing = Routing(frozenset({"a"}), frozenset({"b"}))
    assert pickle.loads(pickle.dumps(routing)) == routing  # noqa: S301 - our own bytes


@given(st.text())
def test_whatever_is_routed_is_a_name_for_a_table(name):
    assert (Routing().refusal(name) is None) == is_game(name)


# --- reports


def report():
    tables = [
        TableReport("bronze", "bronze_events", "/l/bronze_events", rows=10, version=4, batch=7, new=True),
        TableReport("silver", "silver_uno_events", "/l/silver_uno_events", "uno", rows=6),
        TableReport("silver", "silver_rummy_events", "/l/silver_rummy_events", "rummy", rows=99, error="disk full"),
        TableReport("gold", "gold_uno_player_agg", "/l/gold_uno_player_agg", "uno", rows=2),
    ]
    counts = {"rejected": Counter(MALFORMED=2), "unrouted": Counter({INVALID: 1}), "duplicates": Counter(uno=4)}
    lag = {0: 3, 1: 4}
    return RunReport(lag=lag, batches=[7], schema_ids={12, 3}, seconds={"bronze": 1.23456}, tables=tables, **counts)


def test_a_table_that_failed_counts_no_rows_and_makes_the_run_fail():
    made = report()
    assert (made.rows("silver"), made.rows("bronze"), made.rows("unified")) == (6, 10, 0)
    assert [t.table for t in made.errors] == ["silver_rummy_events"]
    assert not made.success
    assert RunReport().success


def test_slices_add_up_to_one_range_per_partition():
    made = RunReport()
    made.add_read({0: 5, 1: 0}, {0: 10, 1: 3})
    made.add_read({0: 10, 2: 7}, {0: 20, 2: 8})
    assert made.offsets == {0: (5, 20), 1: (0, 3), 2: (7, 8)}


def test_the_report_for_programs_is_plain_json_and_says_everything():
    made = report()
    made.add_read({1: 0, 0: 0}, {1: 4, 0: 6})
    told = json.loads(json.dumps(made.to_dict()))
    assert told == {
        "success": False,
        "rows": {"bronze": 10, "quarantine": 0, "silver": 6, "gold": 2, "unified": 0},
        "games": {"rummy": {}, "uno": {"silver": 6, "gold": 2}},
        "offsets": {"0": [0, 6], "1": [0, 4]},
        "lag": 7,
        "batches": [7],
        "schema_ids": [3, 12],
        "rejected": {"MALFORMED": 2},
        "other_types": {},
        "replayed": 0,
        "unrouted": {"invalid": 1},
        "duplicates": {"uno": 4},
        "readmitted": 0,
        "dropped": 0,
        "quarantined_by_rules": 0,
        "rules": [],
        "postponed": [],
        "gaps": [],
        "suppressed": 0,
        "nulled": {},
        "rows_by_type": {},
        "expired": 0,
        "notices": [],
        "maintenance": {},
        "registered": [],
        "checks": {},
        "latency": {},
        "errors": [{"table": "silver_rummy_events", "game": "rummy", "error": "disk full"}],
        "seconds": {"bronze": 1.235},
        "tables": {
            "bronze_events": "/l/bronze_events",
            "silver_uno_events": "/l/silver_uno_events",
            "gold_uno_player_agg": "/l/gold_uno_player_agg",
        },
    }


def test_an_empty_run_is_reported_as_well():
    told = json.loads(json.dumps(RunReport().to_dict()))
    assert told["success"] is True
    assert (told["lag"], told["games"], told["errors"]) == (0, {}, [])


# --- the books


def test_books_balance_if_every_bronze_row_is_somewhere():
    assert Reconciliation().passed
    assert Reconciliation(bronze=10, silver=7, unrouted=2, pending=1, quarantine=99).passed
    assert Reconciliation(bronze=10, silver=7, duplicates=3).passed
    assert not Reconciliation(bronze=10, silver=7, duplicates=3, wrong={"a": GameCounts(10, 7, duplicates=2)}).passed


@pytest.mark.parametrize(
    "books",
    [
        Reconciliation(bronze=10, silver=9),
        Reconciliation(bronze=10, silver=11),
        Reconciliation(bronze=10, silver=10, wrong={"a": GameCounts(5, 6), "b": GameCounts(5, 4)}),
    ],
)
def test_books_that_do_not_balance_fail_and_say_so(books):
    assert not books.passed
    assert books.summary().startswith("rows are missing or doubled")


def test_the_books_name_the_games_that_differ():
    metadata = Reconciliation(bronze=10, silver=10, wrong={"a": GameCounts(5, 6), "b": GameCounts(5, 4)}).metadata()
    assert metadata["games_that_differ"] == "a: bronze 5, silver 6, b: bronze 5, silver 4"
    assert "games_that_differ" not in Reconciliation().metadata()
    assert Reconciliation(1_234, 1_234).summary() == "bronze 1,234 = silver 1,234 + unrouted 0 + pending 0"
