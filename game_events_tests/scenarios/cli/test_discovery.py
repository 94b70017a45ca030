"""Finding, understanding and querying the tables of real runs; every snippet of docs/reading.md."""

import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support.openlineage_spec import check_event
from game_events_tests.support.servers.webhook import Receiver

pytestmark = [
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]
READING = (Path(__file__).parents[3] / "docs" / "reading.md").read_text()
GAME = "Name of the game, for example `rummy`: one silver and one gold table for each."
OFFSET = "Offset of the record in its partition"


def test_the_tables_of_runs_are_found_understood_and_queried(cli, environment, spark, monkeypatch):
    """One pair of runs for all of it: the second brings a schema version."""
    monkeypatch.setenv("GAME_EVENTS_OWNERS", "team:games")
    monkeypatch.setenv("GAME_EVENTS_CATALOG", "games_of_tests")
    runs = []
    with Receiver().running() as receiver:
        monkeypatch.setenv("GAME_EVENTS_OPENLINEAGE_URL", f"http://{receiver.url.split('/')[2]}")
        for versions in ((1,), (1, 2)):
            produce(environment, Simulation(games=("rummy", "uno"), versions=versions, records_per_game_and_version=20))
            said = cli("run", "--json")
            assert said.code == 0, said.everything
            runs.append(said.result)
    monkeypatch.delenv("GAME_EVENTS_OPENLINEAGE_URL")
    root = Path(environment.lakehouse)
    there = sorted(p.name for p in root.iterdir())
    lineage_has_the_reports_numbers(receiver.bodies, runs, root)
    a_catalog_in_memory_is_refused_and_fails_no_run(runs[0])
    comments_are_in_the_tables_and_shown(cli, spark, root)
    history_says_who_made_which_version(cli, spark, root, runs)
    sql_reads_the_tables(cli, spark, root)
    snippets_of_the_page_run(spark, root)
    assert sorted(p.name for p in root.iterdir()) == there


def lineage_has_the_reports_numbers(events, runs, root):
    for event in events:
        check_event(event)
    told = [[e["eventType"] for e in events if e["run"]["runId"] == run["run_id"]] for run in runs]
    assert told == [["START", "COMPLETE"]] * 2
    assert sum(run["lineage"]["sent"] for run in runs) == len(events)
    assert {run["lineage"]["lost"] for run in runs} == {0}
    rows = Counter()
    for event in events:
        for made in event["outputs"]:
            rows[made["name"]] += made["outputFacets"]["outputStatistics"]["rowCount"]
    assert (rows[f"{root}/silver_rummy_events"], rows[f"{root}/bronze_events"]) == (60, 120)


def a_catalog_in_memory_is_refused_and_fails_no_run(run):
    assert run["registered"] == []
    assert "set spark.sql.catalogImplementation to hive" in run["notices"][0]
    assert run["checks"]["tables_registered"] is False


def comments_are_in_the_tables_and_shown(cli, spark, root):
    described = {r["col_name"]: r["comment"] for r in spark.sql(f"DESCRIBE TABLE delta.`{root}/silver_rummy_events`").collect()}
    assert (described["game_name"], described["_kafka_offset"]) == (GAME, OFFSET)
    listed = {t["table"]: t for t in cli("tables", "--json").result["tables"]}
    assert listed["silver_uno_events"]["owners"] == ["team:games"]
    assert listed["silver_uno_events"]["description"].startswith("Events of the game uno")
    assert "team:games" in cli("tables").out
    shown = cli("schema", "silver_uno_events", "--json").result
    columns = {c["column"]: c for c in shown["columns"]}
    assert (shown["owners"], columns["game_name"]["comment"]) == (["team:games"], GAME)
    (field,) = columns["col_custom_1"]["fields"]
    assert (field["message"], field["field"], field["first_version"]) == ("game_events.v1.GameEvent", "col_custom_1", 2)
    assert columns["game_name"]["fields"][0]["first_version"] == 1
    own = columns["_kafka_offset"]
    assert (own["type"], own["comment"], own["fields"], own["nested"]) == ("bigint", OFFSET, [], [])
    assert columns["event_timestamp"]["type"] == "timestamp"
    assert "version 2" in cli("schema", "silver_uno_events").out
    wrong = cli("schema", "silver_umo_events")
    assert wrong.code == 1
    assert "did you mean silver_uno_events" in wrong.err


def history_says_who_made_which_version(cli, spark, root, runs):
    versions = cli("history", "bronze_events", "--json").result["versions"]
    made = [(v["kind"], v["added"], v["batch"]) for v in reversed(versions)]
    # The column of the new version has a commit of its own; comments have come with the columns.
    assert made[0] == ("no rows", 0, 0)
    assert made[-1] == ("rows", 80, 2)
    assert [m for m in made if m[0] == "rows"] == [("rows", 40, 1), ("rows", 80, 2)]
    assert {m[0] for m in made} == {"no rows", "rows", "columns"}
    with_rows = [v for v in versions if v["kind"] == "rows"]
    assert [v["run_id"] for v in reversed(with_rows)] == [run["run_id"] for run in runs]
    assert all(v["mark"] and "[" in v["offsets"] for v in with_rows)
    early = with_rows[-1]["time"].replace(" ", "T")
    for then, rows in ((early, 40), (with_rows[0]["time"].replace(" ", "T"), 120)):
        found = cli("sql", "SELECT count(*) FROM bronze_events", "--as-of", then, "--json")
        assert found.result["rows"] == [[rows]], then
    spark.sql(f"RESTORE TABLE delta.`{root}/gold_uno_player_agg` TO VERSION AS OF 0")
    restored = cli("history", "gold_uno_player_agg", "--json", "--limit", "1").result["versions"]
    assert [v["kind"] for v in restored] == ["restore"]
    assert "restore" in cli("history", "gold_uno_player_agg").out


def sql_reads_the_tables(cli, spark, root):
    newer = spark.sql(f"SELECT count(col_custom_1) FROM delta.`{root}/silver_rummy_events`").first()[0]
    assert newer > 0
    sql = "SELECT game_name, count(*) AS n, count(col_custom_1) AS newer FROM silver_rummy_events GROUP BY ALL"
    found = cli("sql", sql, "--json").result
    assert found == {"columns": ["game_name", "n", "newer"], "rows": [["rummy", 60, newer]], "more": False}
    assert "rummy" in cli("sql", sql).out
    csv = cli("sql", "--csv", "SELECT count(*) AS n, max(_raw_value) IS NULL AS gone FROM bronze_events")
    assert csv.out == "n,gone\n120,False\n"
    few = cli("sql", "FROM Bronze_Events", "--limit", "3", "--json").result
    assert (len(few["rows"]), few["more"]) == (3, True)
    assert re.fullmatch("[0-9a-f]+", few["rows"][0][few["columns"].index("_raw_value")])
    assert len(cli("sql", "--csv", "FROM bronze_events").out.splitlines()) == 121
    names = [row[0] for row in cli("sql", "SHOW TABLES", "--json").result["rows"]]
    assert {"bronze_events", "gold_uno_player_agg", "event_log"} <= set(names)


def snippets_of_the_page_run(spark, root):
    """Every Python block, in order, on this test's tables."""
    found: dict = {"spark": spark}
    elsewhere = ("@dg.asset", "s3://")  # other tests run these
    written = re.findall(r"```python\n(.*?)```", READING, re.DOTALL)
    blocks = [block for block in written if not any(mark in block for mark in elsewhere)]
    assert len(blocks) == 5
    for block in blocks:
        exec(block.replace("lakehouse/", f"{root}/"), found)  # noqa: S102 - of the page, written by us
        players = found["players"]
        assert (players.count() if isinstance(players, DataFrame) else players.shape[0]) > 0
    assert found["comments"].where("col_name = 'gamer_id'").first()["comment"].startswith("Who played.")
    assert found["history"].count() > 1
    assert sum(n for _, n in found["per_device"]) == 60
