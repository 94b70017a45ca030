"""Pipelines with different prefixes on one root: dev and prod side by side."""

from pathlib import Path

from game_events.pipeline.maintenance import maintain
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.plugins.governance.run import erase
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support.reconciliation import assert_books_balance, coordinates, count, rows


def test_dev_and_prod_share_a_root_and_nothing_else_and_tables_may_be_renamed(make_settings, make_pipeline):
    prod = make_settings(erasure_key="0123456789abcdef" * 2)
    dev = make_settings(names={"prefix": "dev_"}, gold_columns={"sessions": "count(*)"})
    sent = produce(prod, Simulation(games=("rummy", "uno"), records_per_game_and_version=5, poison_share=0.2))
    for settings in (prod, dev):
        report = refresh(make_pipeline(settings))
        assert report.success, report.errors
    assert_books_balance(prod, sent)
    assert coordinates(prod, "dev_bronze_events") == coordinates(prod, "bronze_events")
    dev_uno = coordinates(prod, "dev_silver_uno_events")
    assert dev_uno == coordinates(prod, "silver_uno_events")
    assert sum(r[0] for r in rows(prod, "dev_gold_unified_player_agg", "SELECT sessions FROM t")) == sent.decodable
    tables = {t.table for t in report.tables}
    assert {"dev_bronze_events", "dev_silver_uno_events", "dev_gold_uno_player_agg", "dev_gold_unified_player_agg"} <= tables
    assert all(name.startswith("dev_") for name in tables)

    maintained = RunReport()
    maintain(make_pipeline(prod), maintained)
    there = {folder.name for folder in Path(prod.lakehouse).iterdir()}
    assert set(maintained.maintenance) == {name for name in there if not name.startswith("dev_")}
    assert {"silver_uno_events", "bronze_events", "progress"} <= set(maintained.maintenance)

    gamer = rows(prod, "silver_uno_events", "SELECT gamer_id FROM t LIMIT 1")[0][0]
    account = RunReport()
    erase(make_pipeline(prod), account, frozenset({gamer}))
    assert account.parts["erasure"].rows["silver_uno_events"] > 0
    assert coordinates(prod, "dev_silver_uno_events") == dev_uno
    assert count(prod, "silver_uno_events") < len(dev_uno)

    # Progress knows tables by their ids.
    root = Path(prod.lakehouse)
    for folder in [f for f in root.iterdir() if f.name.startswith("dev_")]:
        folder.rename(root / folder.name.replace("dev_", "stage_", 1))
    stage = make_settings(names={"prefix": "stage_"}, gold_columns=dev.gold_columns)
    again = refresh(make_pipeline(stage))
    assert again.success
    assert again.tables == []
    assert not [f for f in root.iterdir() if f.name.startswith("dev_")]
