"""`doctor` names the columns of `LAYOUT` and `STATISTICS_COLUMNS` that do not fit, and the tables that are not so yet."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from game_events.errors import ConfigurationError
from game_events.lakehouse import laying_out
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.pipeline.runs.file_layout import require_columns
from game_events.pipeline.runs.preflight import Hint, layout, state_checks
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put

TIME = pa.timestamp("us", tz="UTC")
DECODED = {"game_name": ["uno"], "event_timestamp": pa.array([0], TIME), "text": ["a"], "parts": [[1]]}


def with_bronze(root, **settings):
    pipeline = without_spark(root, **settings)
    own = {field.name: pa.nulls(1, field.type) for field in OWN_COLUMNS}
    put(pipeline.bronze, own | DECODED, info={BATCH_INFO: "1"})
    return pipeline


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"layout": "silver=cluster(text, levl)"}, "LAYOUT: silver has no column levl. It has"),
        ({"layout": "silver=cluster(_raw_value)"}, "LAYOUT: silver has no column _raw_value"),
        ({"layout": "silver=day", "time_column": "text"}, "silver: text is string, which has no days"),
        ({"statistics_columns": {"bronze": ["other"]}}, "STATISTICS_COLUMNS: bronze has no column other"),
        ({"statistics_columns": "parts"}, "bronze: parts: nested values have no order"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_by_its_name(settings, why, tmp_path):
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_(.|\n)*" + why.replace("(", r"\(")):
        require_columns(with_bronze(tmp_path, **settings))


def test_what_fits_is_said_and_nothing_is_known_before_the_first_rows(tmp_path):
    settings = {"layout": "silver=day, bronze=arrival_day", "statistics_columns": "text"}
    assert require_columns(without_spark(tmp_path, **settings)) == "columns are not known before bronze has rows"
    said = require_columns(with_bronze(tmp_path, **settings))
    assert said == (
        "bronze: files by day of _kafka_timestamp, statistics of text; "
        "silver: files by day of event_timestamp, statistics of text"
    )


def test_files_of_several_days_are_a_hint_with_their_table_and_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(laying_out, "SPREAD_BYTES", 1)
    pipeline = with_bronze(tmp_path, layout="silver=day")
    assert "layout" in state_checks(pipeline)
    assert not isinstance(layout(pipeline), Hint)
    days = [datetime(2026, 3, 1 + n, tzinfo=UTC) for n in range(3)]
    put(pipeline.lakehouse.silver("uno"), {"n": range(3), "event_timestamp": pa.array(days, TIME)}, info={BATCH_INFO: "1"})
    said = layout(pipeline)
    assert isinstance(said, Hint)
    assert "silver_uno_events (1 file)" in said
    assert "game-events maintain --layout" in said


def test_without_a_layout_there_is_no_such_check(tmp_path):
    assert "layout" not in state_checks(without_spark(tmp_path))
