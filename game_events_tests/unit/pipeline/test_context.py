"""The parts of a pipeline: how long a look waits for the source; nobody who was erased comes back as a plug-in is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.pipeline import context
from game_events.pipeline.context import SNAPSHOT_S, record_filter
from game_events.plugin import Plugin
from game_events.sources.kafka.source import TIMEOUT_S
from game_events_tests.support.pipelines import without_spark
from game_events_tests.support.tables import put


def opened(table, **transactions):
    put(table, OWN_COLUMNS.empty_table(), transactions)
    return table.open()


def refuses_all(*_):
    return object()


def refuses_none(*_):
    return None


@pytest.fixture
def pipeline(tmp_path):
    return without_spark(tmp_path / "lake")


@pytest.fixture
def plugins(monkeypatch):
    """Install these plug-ins, and no others."""

    def install(*functions):
        made = [Plugin(f.__name__, record_filter=f"{__name__}:{f.__name__}") for f in functions]
        monkeypatch.setattr(context, "installed", lambda: tuple(made))
        monkeypatch.setattr("game_events.plugin.installed", lambda: tuple(made))

    return install


def test_without_a_filter_everything_is_stored_until_somebody_was_erased(pipeline, plugins):
    plugins()
    assert record_filter(pipeline, opened(pipeline.bronze, batch=0)) is None
    erased = opened(pipeline.bronze, **{Txn.ERASURES: 1})
    with pytest.raises(ConfigurationError, match="Install the plug-in governance"):
        record_filter(pipeline, erased)


def test_one_filter_decides_and_two_are_refused_by_name(pipeline, plugins):
    bronze = opened(pipeline.bronze, batch=0)
    plugins(refuses_none, refuses_all)
    assert record_filter(pipeline, bronze) is not None
    plugins(refuses_all, refuses_all)
    with pytest.raises(ConfigurationError, match="only one may do: refuses_all, refuses_all"):
        record_filter(pipeline, bronze)


def test_a_look_that_changes_nothing_waits_less_for_the_source_than_a_run(tmp_path):
    run = without_spark(tmp_path)
    assert [pipeline.source.admin.timeout_s for pipeline in (run, replace(run, read_only=True))] == [TIMEOUT_S, SNAPSHOT_S]
