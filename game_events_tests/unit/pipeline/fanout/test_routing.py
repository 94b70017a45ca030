"""Which names become games, and how runs and books are reported."""

import json
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from game_events.config.settings import Settings
from game_events.lakehouse.tables import is_game
from game_events.pipeline.checks.reconcile import GameCounts, Reconciliation
from game_events.pipeline.fanout.routing import INVALID, NO_NAME, NOT_ALLOWED, Routing, admit
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reporting.tables import TableReport

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
    routing = Routing(only=frozenset({"uno"}))
    assert not routing.skips("uno")
    assert routing.skips("rummy")
    assert routing.skips(None)
    assert not Routing().skips("rummy")


def test_a_routing_survives_the_way_to_a_worker():
    routing = Routing(frozenset({"a"}), frozenset({"b"}))
    assert pickle.loads(pickle.dumps(routing)) == routing  # noqa: S301 - our own bytes


# --- admission


def limits(**overrides):
    return Settings(**({"max_games": 3, "new_game_min_rows": 100, "games": ()} | overrides))


def test_while_there_is_room_the_names_with_most_rows_come_in_first():
    assert admit(limits(), {"a"}, {"x": 1, "y": 50, "z": 2}) == ({"y", "z"}, {"x": 1})


def test_equal_names_come_in_by_alphabet():
    assert admit(limits(), {"a", "b"}, {"z": 1, "y": 1, "x": 1})[0] == {"x"}


def test_past_the_room_enough_rows_or_the_allow_list_let_in():
    known = {"a", "b", "c"}
    assert admit(limits(games=("vip",)), known, {"vip": 1, "big": 100, "small": 99}) == ({"vip", "big"}, {"small": 99})


def test_past_the_last_bound_only_the_allow_list_lets_in_however_many_rows_a_name_has():
    settings = limits(max_games=2, max_games_ever=3)
    flood = {f"fake_{n}": 10_000 + n for n in range(50)}
    admitted, refused = admit(settings, {"a", "b"}, flood)
    assert (admitted, len(refused)) == ({"fake_49"}, 49)
    assert admit(settings, {"a", "b", "c", "d"}, flood)[0] == set()
    assert admit(limits(max_games=2, max_games_ever=3, games=("vip",)), {"a", "b", "c"}, {"vip": 1})[0] == {"vip"}
    assert len(admit(limits(max_games=7, max_games_ever=3), set(), flood)[0]) == 7, "what the owner makes room for is there"


counts = st.dictionaries(st.sampled_from([f"g{i}" for i in range(12)]), st.integers(1, 300), max_size=12)


@given(counts, st.integers(0, 6), st.integers(1, 6), st.integers(1, 200))
def test_a_flood_of_names_never_locks_out_a_game_with_enough_rows(new, known, max_games, enough):
    settings = limits(max_games=max_games, new_game_min_rows=enough)
    admitted, refused = admit(settings, {f"known{i}" for i in range(known)}, new)
    assert admitted | refused.keys() == new.keys()
    assert not admitted & refused.keys()
    assert len(admitted) <= max(0, max_games - known) + sum(rows >= enough for rows in new.values())
    assert all(rows < enough for rows in refused.values())
    assert refused == {name: new[name] for name in refused}
    if refused:
        assert known + len(admitted) >= max_games


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
    counts = {"rejected": Counter(MALFORMED=2), "unrouted": Counter({INVALID: 1})}
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
        "readmitted": 0,
        "dropped": 0,
        "quarantined_by_rules": 0,
        "rules": [],
        "postponed": [],
        "gaps": [],
        "suppressed": 0,
        "expired": 0,
        "notices": [],
        "upkeep": {},
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
