"""By which definitions bronze was made: what is refused, and what a run says."""

import json

import pyarrow as pa
import pytest

from game_events.config.definitions.settings import marks_of, number_of
from game_events.config.settings import load_settings
from game_events.decoding.columns import ColumnMap, Field
from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.pipeline.definitions import (
    as_planned,
    is_first,
    made_by,
    marks_to_set,
    misfits_named,
    refuse_misfits,
    refuse_other_types,
    refuse_others,
    unknown_names,
)
from game_events.pipeline.runs.trial import check_definitions
from game_events.workers.results import StagedRows
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

TIME = pa.timestamp("us", tz="UTC")
COLUMNS = {"game_name": pa.array(["uno"]), "gamer_id": pa.array(["a"]), "event_timestamp": pa.array([0], TIME)}


def _set_in(pipeline):
    return {name: mark for name, mark in marks_of(pipeline.settings).items() if mark}


def bronze(pipeline, columns=COLUMNS, rows=1, **marks):
    """A version of bronze with these decoded columns and numbers of definitions."""
    own = {f.name: pa.nulls(rows, f.type) for f in OWN_COLUMNS}
    all_of_them = {Txn.DEFINITION: number_of(pipeline.settings) if marks == _set_in(pipeline) else 1} if marks else {}
    set_to = {Txn.BATCH: 1} | {Txn.DEFINITION.of(name): mark for name, mark in marks.items()} | all_of_them
    return put(pipeline.bronze, own | {name: values[:rows] for name, values in columns.items()}, set_to)


def test_rows_by_the_same_definitions_are_added_and_their_numbers_set_only_where_there_ever_was_one(tmp_path):
    plain = without_spark(tmp_path / "plain")
    table = bronze(plain)
    refuse_others(plain, table)
    assert marks_to_set(plain, table) == {}
    assert made_by(plain.settings) == "game_name"

    computed = without_spark(tmp_path / "computed", key="a")
    marks = marks_of(computed.settings)
    table = bronze(computed, key=marks["key"])
    number = number_of(computed.settings)
    refuse_others(computed, table)
    assert not is_first(computed, table)
    assert as_planned(table) == {"definition": number}
    numbers = {"definition:entity": 0, "definition:key": marks["key"], "definition:time": 0}
    assert marks_to_set(computed, table) == numbers | {"definition": number}
    assert made_by(computed.settings) == f"game_name=key:{marks['key']:x}"
    back = without_spark(tmp_path / "computed")
    assert marks_to_set(back, table) == dict.fromkeys((*numbers, "definition"), 0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"entity": "x"}, r"another definition of GAME_EVENTS_ENTITY \(GAME_EVENTS_ENTITY_ALIASES, .*NAMES\): nothing"),
        ({"entity_aliases": {"X": "x"}}, "GAME_EVENTS_ENTITY "),
        ({"key": "x", "time": "y"}, "definition of GAME_EVENTS_KEY and of GAME_EVENTS_TIME: nothing was added"),
    ],
)
def test_rows_by_other_definitions_are_refused_with_the_command_that_makes_all_anew(tmp_path, settings, named):
    pipeline = without_spark(tmp_path, **settings)
    table = bronze(pipeline)
    assert is_first(pipeline, table)
    with pytest.raises(ConfigurationError, match=rf"{named}.*`game-events redecode --downstream`"):
        refuse_others(pipeline, table)


def test_a_table_without_rows_takes_any_definitions_and_one_with_a_row_does_not(tmp_path):
    empty, filled = (without_spark(tmp_path / name, key="x") for name in ("empty", "filled"))
    refuse_others(empty, bronze(empty, rows=0, key=7, time=8))
    with pytest.raises(ConfigurationError, match="another definition of GAME_EVENTS_KEY and of GAME_EVENTS_TIME: nothing was"):
        refuse_others(filled, bronze(filled, rows=1, key=7, time=8))


@pytest.mark.parametrize(
    ("columns", "settings", "why"),
    [
        ({"event_timestamp": pa.array([1])}, {"time": "x"}, "TIME gives a timestamp .*'event_timestamp', but .* as a bigint"),
        ({"GAMER_ID": ["a"]}, {"key": "x"}, "KEY gives a string for the column 'gamer_id', but .* as 'GAMER_ID'"),
        ({}, {"key": "x", "key_column": "id__bigint"}, "'id__bigint', but its name says that it is a bigint"),
    ],
)
def test_a_column_that_holds_something_else_is_not_computed(tmp_path, columns, settings, why):
    pipeline = without_spark(tmp_path, **settings)
    with pytest.raises(ConfigurationError, match=rf"{why}.*_COLUMN to a name that no column has yet"):
        refuse_other_types(pipeline, bronze(pipeline, columns))


def test_definitions_that_fit_no_type_are_refused_while_they_are_new_and_only_then(tmp_path):
    pipeline = without_spark(tmp_path, time="x", key="y")
    unfit = StagedRows(misfits={"event_timestamp": {"b.B": "it gives BIGINT", "a.A": "it gives DATE"}}, fitted={"gamer_id"})
    with pytest.raises(ConfigurationError, match=r"nothing was written: GAME_EVENTS_TIME does not fit .* a\.A, b\.B: it gives"):
        refuse_misfits(pipeline, bronze(pipeline), unfit)
    refuse_misfits(pipeline, bronze(pipeline), StagedRows(misfits=unfit.misfits, fitted={"event_timestamp"}))
    refuse_misfits(pipeline, bronze(pipeline, **_set_in(pipeline)), unfit)
    assert len(list(misfits_named(pipeline, unfit.misfits))) == 1


def test_names_of_fields_that_no_type_has_are_named_with_those_that_are_there(tmp_path):
    pipeline = without_spark(tmp_path, entity="meta.name", key="gamer_idd", time="coalesce(ts, at_all, _kafka_timestamp)")
    kinds = {"meta": pa.struct([("name", pa.string())]), "gamer_id": pa.string(), "ts": pa.int64()}
    fields = [Field(number, name, kind) for number, (name, kind) in enumerate(kinds.items())]
    columns = ColumnMap().with_columns({"gamer_idd": pa.string()}).with_message("M", fields)
    key, time = unknown_names(pipeline, columns)
    assert key.startswith("GAME_EVENTS_KEY: no message type has gamer_idd; there are gamer_id, ")
    assert time.startswith("GAME_EVENTS_TIME: no message type has at_all; there are ")
    assert unknown_names(pipeline, ColumnMap()) == []


def test_doctor_shows_the_definitions_also_before_there_is_a_row_and_fails_where_a_run_would(tmp_path):
    pipeline = without_spark(tmp_path, entity={"M": "a", "*": "b"}, entity_names="lower")
    well, text = check_definitions(pipeline)
    assert well
    assert text == "game_name: M: a; b; names in game_name: other names: lower; not tried: bronze_events has no row yet"
    bronze(pipeline)
    with pytest.raises(ConfigurationError, match=r"game_name: M: a; b.*redecode --downstream"):
        check_definitions(without_spark(tmp_path, entity={"M": "a", "*": "b"}))
    renamed = {"entity_names": "lower", "entity_aliases": {"UNO": "uno"}}
    schema = pa.schema(pipeline.open_bronze().schema())
    made = {Txn.DEFINITION: number_of(load_settings(**renamed))}
    put(pipeline.bronze, {f.name: pa.nulls(1, f.type) for f in schema}, made)
    well, text = check_definitions(without_spark(tmp_path, **renamed))
    assert text == "names in game_name: UNO = uno; other names: lower. Of 0 rows of bronze_events they make nothing"
    assert check_definitions(without_spark(tmp_path / "other"))[1] == "game, player and time are decoded fields"


def test_doctor_shows_what_the_expressions_give_for_rows_that_there_are_also_where_a_run_would_be_refused(tmp_path):
    by_json = {"decoding": {"events": {"format": "json"}}, "key": "who"}
    pipeline = without_spark(tmp_path, entity="lower(g) || '_eu'", **by_json)
    games = ["Uno", "Uno", "Go"]
    values = {
        "_raw_value": [json.dumps({"g": game, "who": f"p{number}"}).encode() for number, game in enumerate(games)],
        "_kafka_topic": ["events"] * 3,
        "_message_type": ["events"] * 3,
    }
    own = {f.name: pa.array(values.get(f.name, [None] * 3), f.type) for f in OWN_COLUMNS}
    marks = {Txn.DEFINITION.of(name): mark for name, mark in _set_in(pipeline).items()}
    put(pipeline.bronze, own, {Txn.BATCH: 1, Txn.DEFINITION: number_of(pipeline.settings)} | marks)
    tried = "Of 3 rows of bronze_events they make"
    well, text = check_definitions(pipeline)
    assert well
    assert (
        text == f"game_name: lower(g) || '_eu'; gamer_id: who. {tried} game_name 'uno_eu', 'go_eu'; gamer_id 'p0', 'p1', 'p2'"
    )
    with pytest.raises(ConfigurationError) as raised:
        check_definitions(without_spark(tmp_path, entity="g || '/' || who", **by_json))
    made = f"{tried} game_name 'Uno/p0', 'Uno/p1', 'Go/p2'; gamer_id 'p0', 'p1', 'p2'"
    assert str(raised.value).startswith(
        f"game_name: g || '/' || who; gamer_id: who. {made}. But the rows of bronze_events were "
    )
