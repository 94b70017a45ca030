"""What the pipeline asks plug-ins: nobody who was erased comes back because a plug-in is missing."""

from __future__ import annotations

import pytest

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.pipeline import hooks
from game_events.plugin import Plugin
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
        monkeypatch.setattr(hooks, "installed", lambda: tuple(made))
        monkeypatch.setattr("game_events.plugin.installed", lambda: tuple(made))

    return install


def test_without_a_filter_everything_is_stored_until_somebody_was_erased(pipeline, plugins):
    plugins()
    assert hooks.record_filter(pipeline, opened(pipeline.bronze, batch=0)) is None
    erased = opened(pipeline.bronze, **{Txn.ERASURES: 1})
    with pytest.raises(ConfigurationError, match="Install the plug-in governance"):
        hooks.record_filter(pipeline, erased)


def test_one_filter_decides_and_two_are_refused_by_name(pipeline, plugins):
    bronze = opened(pipeline.bronze, batch=0)
    plugins(refuses_none, refuses_all)
    assert hooks.record_filter(pipeline, bronze) is not None
    plugins(refuses_all, refuses_all)
    with pytest.raises(ConfigurationError, match="only one may do: refuses_all, refuses_all"):
        hooks.record_filter(pipeline, bronze)
