"""Whether a run would find anything to do: the search changes nothing, and is never mistaken about work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events.errors import TransientError
from game_events.lakehouse.commits.transactions import BronzeIdentity
from game_events.lakehouse.tables import BRONZE, Layer
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import recorded
from game_events.pipeline.gold.refresh import refresh_gold
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.loop import idle_report
from game_events.pipeline.runs.refresh import refresh
from game_events.pipeline.silver.refresh import refresh_silver
from game_events_tests.conftest import MakePipeline, MakeSettings
from game_events_tests.support.servers.registry_proxy import RegistryProxy
from game_events_tests.support.worlds.own_module import TOTAL, extension
from game_events_tests.support.worlds.quality import Event, rule, send_events
from game_events_tests.support.worlds.waves import send


def everything(settings: Settings) -> set[tuple[str, int]]:
    """Each file below the lakehouse, with its time of change."""
    root = Path(settings.lakehouse)
    return {(str(f.relative_to(root)), f.stat().st_mtime_ns) for f in root.rglob("*") if f.is_file()}


def more(pipeline: Pipeline) -> None:
    send_events(pipeline.settings, [Event("uno", 2)])


def bronze_alone(pipeline: Pipeline) -> None:
    more(pipeline)
    load_bronze(pipeline, RunReport())


def bronze_and_silver(pipeline: Pipeline) -> None:
    bronze_alone(pipeline)
    refresh_silver(pipeline, RunReport())


def all_but_unified(pipeline: Pipeline) -> None:
    bronze_and_silver(pipeline)
    refresh_gold(pipeline, RunReport())


def failed_game(pipeline: Pipeline) -> None:
    bronze = pipeline.bronze.open()
    assert bronze is not None
    key = BronzeIdentity.of(bronze).key
    pipeline.progress.update(key, lambda now: now.pending(Layer.GOLD, {"uno"}, "a fault of an earlier run"))


def lost_table(name: str) -> Callable[[Pipeline], None]:
    return lambda pipeline: shutil.rmtree(f"{pipeline.lakehouse.root}/{name}")


def restored(pipeline: Pipeline) -> None:
    more(pipeline)
    refresh(pipeline)
    DeltaTable(pipeline.lakehouse.gold("uno").uri).restore(0)
    DeltaTable(pipeline.lakehouse.table(BRONZE).uri).restore(1)


def damaged(pipeline: Pipeline) -> None:
    for commit in (Path(pipeline.bronze.uri) / "_delta_log").glob("*.json"):
        commit.write_text("{")


def a_run_that_failed(pipeline: Pipeline) -> None:
    with pytest.raises(TransientError), recorded(pipeline, RunReport(), "refresh"):
        raise TransientError("the broker was away")


WORK = {
    "the run before has failed": a_run_that_failed,
    "new records": more,
    "bronze alone was brought up to date": bronze_alone,
    "gold is behind": bronze_and_silver,
    "the unified table is behind": all_but_unified,
    "a game has failed": failed_game,
    "bronze is gone": lost_table("bronze_events"),
    "a silver table is gone": lost_table("silver_uno_events"),
    "a gold table is gone": lost_table("gold_uno_player_agg"),
    "the unified table is gone": lost_table("gold_unified_player_agg"),
    "progress is gone": lost_table("progress"),
    "bronze was restored by hand": restored,
    "the log of bronze is damaged": damaged,
}


@pytest.mark.parametrize("what", WORK)
def test_work_is_found_and_left_to_the_run(what: str, make_settings: MakeSettings, make_pipeline: MakePipeline) -> None:
    settings = make_settings()
    send_events(settings, [Event("uno", 1), Event("go", 1)])
    refresh(make_pipeline(settings))
    assert idle_report(settings) is not None
    WORK[what](make_pipeline(settings))
    before = everything(settings)
    assert idle_report(settings) is None
    assert everything(settings) == before


@pytest.mark.parametrize("other", [{"gold_columns": {"n": "count(*)"}}, {"rules": [rule("r", "level > 100", "warn")]}])
def test_changed_settings_are_work_if_they_are_for_a_run(
    other: dict[str, object], make_settings: MakeSettings, make_pipeline: MakePipeline
) -> None:
    settings = make_settings()
    send_events(settings, [Event("uno", 1)])
    refresh(make_pipeline(settings))
    changed = make_settings(lakehouse=settings.lakehouse, kafka_topic=settings.kafka_topic, **other)
    found = idle_report(changed)
    report = refresh(make_pipeline(changed))
    assert (found is None) == bool(report.tables)


def test_rows_of_a_schema_that_became_known_are_work(
    make_settings: MakeSettings, make_pipeline: MakePipeline, proxy: RegistryProxy
) -> None:
    settings = make_settings(schema_registry_url=proxy.url)
    sent = send(make_settings(), version=2, poison=0.0)
    proxy.hide(sent.schema_ids[2])
    refresh(make_pipeline(settings))
    assert idle_report(settings) is not None
    proxy.show_all()
    before = everything(settings)
    assert idle_report(settings) is None
    assert everything(settings) == before
    assert refresh(make_pipeline(settings)).rows("bronze") == sent.records_total


def test_an_aggregate_of_ones_own_is_work_when_it_is_new_and_due(
    make_settings: MakeSettings, make_pipeline: MakePipeline, tmp_path: Path
) -> None:
    settings = make_settings()
    send_events(settings, [Event("uno", 1)])
    refresh(make_pipeline(settings))
    seldom = TOTAL.replace('("total")', '("total", interval_s=3600)')
    own = make_settings(extensions=(extension(tmp_path, seldom),))
    assert idle_report(own) is None
    assert refresh(make_pipeline(own)).tables
    assert idle_report(own) is not None
    assert idle_report(own, ignore_intervals=True) is not None
    more(make_pipeline(own))
    refresh(make_pipeline(own))
    # The run says that it has left the aggregate for later.
    assert idle_report(own) is None
    assert idle_report(own, ignore_intervals=True) is None


def test_before_the_first_run_there_is_work_and_nothing_is_made(make_settings: MakeSettings) -> None:
    settings = make_settings()
    assert idle_report(settings) is None
    send_events(settings, [Event("uno", 1)])
    assert idle_report(settings) is None
    assert not Path(settings.lakehouse).exists() or everything(settings) == set()


def test_a_search_that_finds_nothing_reports_what_a_run_would(make_settings: MakeSettings, make_pipeline: MakePipeline) -> None:
    settings = make_settings()
    send_events(settings, [Event("uno", 1), Event("", 2)])
    refresh(make_pipeline(settings))
    before = everything(settings)
    found = idle_report(settings)
    assert found is not None
    assert everything(settings) == before
    second = refresh(make_pipeline(settings)).to_dict()
    assert found.to_dict().keys() == second.keys()
    assert {k: v for k, v in found.to_dict().items() if k != "seconds"} == {k: v for k, v in second.items() if k != "seconds"}
    assert everything(settings) == before, "the run has changed nothing either"


def test_what_cannot_be_looked_at_is_left_to_the_run_which_reports_it(make_settings: MakeSettings) -> None:
    assert idle_report(make_settings(kafka_bootstrap_servers="127.0.0.1:1")) is None
    assert idle_report(make_settings(schema_registry_url="http://127.0.0.1:1")) is None
