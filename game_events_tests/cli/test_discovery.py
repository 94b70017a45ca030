"""Finding, understanding and querying the tables of one real run; every snippet of docs/reading.md."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from game_events.producer.produce import produce
from game_events.producer.simulator import Simulation
from game_events_tests.assets.receiver import Receiver
from game_events_tests.discovery.openlineage_spec import check_event

pytestmark = [
    pytest.mark.stack,
    # Dagster 1.13 calls its own deprecated property for every nested resource.
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning"),
]
READING = (Path(__file__).parents[2] / "docs" / "reading.md").read_text()
GAME = "Name of the game, for example `rummy`: one silver and one gold table for each."
OFFSET = "Offset of the record in its partition"


def wave(*versions):
    return Simulation(games=("rummy", "uno"), versions=versions, records_per_game_and_version=20)


def test_the_tables_of_a_run_are_found_understood_and_queried(cli, environment, spark, monkeypatch, tmp_path):
    monkeypatch.setenv("GAME_EVENTS_OWNERS", "team:games")
    monkeypatch.setenv("GAME_EVENTS_CATALOG", "games_of_tests")
    with Receiver().running() as receiver:
        monkeypatch.setenv("GAME_EVENTS_OPENLINEAGE_URL", f"http://{receiver.url.split('/')[2]}")
        produce(environment, wave(1))
        first = cli("run", "--json")
        assert first.code == 0, first.everything
        produce(environment, wave(1, 2))
        second = cli("run", "--json")
        assert second.code == 0, second.everything
    root = Path(environment.lakehouse)

    # Lineage: what the runs did, in events of the specification; the numbers are the report's.
    for event in receiver.bodies:
        check_event(event)
    told = [e for e in receiver.bodies if e["run"]["runId"] == first.result["run_id"]]
    assert [e["eventType"] for e in told] == ["START", "COMPLETE"]
    assert first.result["lineage"] == {"sent": len(receiver.bodies) - second.result["lineage"]["sent"], "lost": 0, "why": ""}
    rows = Counter()
    for event in receiver.bodies:
        for made in event["outputs"]:
            rows[made["name"]] += made["outputFacets"]["outputStatistics"]["rowCount"]
    assert rows[str(root / "silver_rummy_events")] == 60
    assert rows[str(root / "bronze_events")] == 120

    # The catalog of the tests' session ends with it: said, not fatal.
    assert first.result["registered"] == []
    assert "set spark.sql.catalogImplementation to hive" in first.result["notices"][0]
    assert first.result["checks"]["tables_registered"] is False

    # Comments, in the tables and everywhere else; a new version made a column and one commit for it, not one a run.
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
    assert columns["_kafka_offset"] == {
        "column": "_kafka_offset",
        "type": "bigint",
        "comment": OFFSET,
        "fields": [],
        "nested": [],
    }
    assert columns["event_timestamp"]["type"] == "timestamp"
    wrong = cli("schema", "silver_umo_events")
    assert (wrong.code, "did you mean silver_uno_events" in wrong.err) == (1, True)

    # History: who made which version.
    spark.sql(f"RESTORE TABLE delta.`{root}/gold_uno_player_agg` TO VERSION AS OF 0")
    versions = cli("history", "bronze_events", "--json").result["versions"]
    made = [(v["kind"], v["added"], v["batch"]) for v in reversed(versions)]
    assert made == [("no rows", 0, 0), ("rows", 40, 1), ("columns", 0, None), ("rows", 80, 2)] or made[0][2] == 0
    assert {v["run_id"] for v in versions if v["kind"] == "rows"} == {first.result["run_id"], second.result["run_id"]}
    assert all(v["mark"] for v in versions if v["kind"] == "rows")
    assert f"{environment.kafka_topic}[" in versions[0]["offsets"]
    restored = cli("history", "gold_uno_player_agg", "--json", "--limit", "1").result["versions"]
    assert [v["kind"] for v in restored] == ["restore"]
    assert "restore" in cli("history", "gold_uno_player_agg").out

    # SQL
    sql = "SELECT game_name, count(*) AS n, count(col_custom_1) AS newer FROM silver_rummy_events GROUP BY ALL"
    assert cli("sql", sql, "--json").result == {
        "columns": ["game_name", "n", "newer"],
        "rows": [["rummy", 60, 20]],
        "more": False,
    }
    assert (
        cli("sql", "--csv", "SELECT count(*) AS n, max(_raw_value) IS NULL AS gone FROM bronze_events").out
        == "n,gone\n120,False\n"
    )
    few = cli("sql", "FROM Bronze_Events", "--limit", "3", "--json").result
    assert (len(few["rows"]), few["more"]) == (3, True)
    assert re.fullmatch("[0-9a-f]+", few["rows"][0][few["columns"].index("_raw_value")])
    assert len(cli("sql", "--csv", "FROM bronze_events").out.splitlines()) == 121
    names = [row[0] for row in cli("sql", "SHOW TABLES", "--json").result["rows"]]
    assert {"bronze_events", "gold_uno_player_agg", "event_log"} <= set(names)
    before = versions[0]["time"].replace(" ", "T")
    assert cli("sql", "SELECT count(*) FROM bronze_events", "--as-of", before, "--json").result["rows"] == [[120]]
    early = next(v for v in versions if v["batch"] == 1)["time"].replace(" ", "T")
    assert cli("sql", "SELECT count(*) FROM bronze_events", "--as-of", early, "--json").result["rows"] == [[40]]
    for query, hint in {
        "FROM silver_rumy_events": "did you mean silver_rummy_events",
        "SELECT nope FROM bronze_events": "nope",
        "SELEC 1": "the query cannot be read",
        "SELECT 1; SELECT 2": "only one SELECT",
        f"COPY (SELECT 1) TO '{root}/x.csv'": "only one SELECT",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'x'": "only one SELECT",
        "DROP TABLE bronze_events": "only one SELECT",
        "FROM read_csv('/etc/passwd')": "Permission",
        "FROM read_parquet('https://example.com/x.parquet')": "the query failed",
        "SELECT 1/0 + 'a'::INT": "the query failed",
    }.items():
        said = cli("sql", query, "--json")
        assert (said.code, said.result["success"]) == (1, False), query
        assert hint in said.result["error"], (query, said.result["error"])
        assert "Traceback" not in said.everything
    old = cli("sql", "FROM bronze_events", "--as-of", "2020-01-01")
    assert (old.code, "there is no table 'bronze_events'" in old.err) == (1, True)

    # Other readers, as the page has them
    made = _snippets(spark, root)
    assert made["players"].shape[0] > 0
    assert sum(n for _, n in made["per_device"]) == 60
    assert json.dumps(sorted(p.name for p in root.iterdir())) == json.dumps(sorted(names))


def _snippets(spark, root):
    """Runs every Python block of the page, in order, on this test's tables."""
    found: dict = {"spark": spark}
    blocks = re.findall(r"```python\n(.*?)```", READING, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(block.replace("lakehouse/", f"{root}/"), found)  # noqa: S102 - of the page, written by us
        players = found["players"]
        if isinstance(players, DataFrame):
            assert players.count() > 0
        else:
            assert players.shape[0] > 0
    assert found["comments"].where("col_name = 'gamer_id'").first()["comment"].startswith("Who played.")
    assert found["history"].count() > 1
    return found
