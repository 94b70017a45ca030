"""`game-events demo`: the whole system from nothing, as the first thing that a new user runs."""

import json
import os
import re
import subprocess
import sys
import uuid
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from game_events.config.settings import load_settings
from game_events.plugins.local import demo as demo_command
from game_events.plugins.local.demo import truths
from game_events.plugins.local.demo_studio import RECORDS
from game_events.plugins.local.producer.studio import SESSION, events
from game_events.plugins.local.servers.local_stack import StackState
from game_events_tests.support.docs.pages import DOCS, PAGES, RUN_BY, blocks
from game_events_tests.support.docs.printed import missing
from game_events_tests.support.processes import running

PROTO = (DOCS.parent / "examples" / "studio" / "studio.proto").read_text()
#: The message types of the example, by their number.
MESSAGES = re.findall(r"^message (\w+)", PROTO, re.MULTILINE)


@pytest.fixture
def demo(tmp_path):
    """Runs the demo in a process of its own, as a user does; what it says, and its result."""

    def run(*options):
        environment = {k: v for k, v in os.environ.items() if k != "DAGSTER_HOME"} | {
            "GAME_EVENTS_STATE_DIR": str(tmp_path / "state"),
            "GAME_EVENTS_SPARK_MASTER": "local[2]",
        }
        command = Path(sys.executable).with_name("game-events")
        found = subprocess.run(
            [command, "demo", *options, "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        (line,) = found.stdout.splitlines()
        assert "Traceback" not in found.stderr
        left = [p.cmdline() for p in running() if str(tmp_path) in " ".join(_command(p))]
        assert left == []
        return found.stderr, json.loads(line)

    return run


@pytest.mark.parametrize(
    "source",
    [
        {"source": "files", "files_path": "in"},
        {"kafka_topic_pattern": "prod.*"},
        {"source_table": "s3://prod/bronze"},
        {"kafka_assign": {"mine": [0, 3]}},
    ],
)
def test_whatever_the_settings_read_and_tell_the_demo_keeps_to_its_own_parts(tmp_path, monkeypatch, source):
    state = StackState.model_construct(kafka_bootstrap_servers="h:1", schema_registry_url="http://h:2")
    outside = dict.fromkeys(("alert_webhook_url", "openlineage_url", "rest_url"), "https://prod.example") | {"catalog": "prod"}
    secured = {"kafka_options": {"security.protocol": "SSL"}, "extensions": ["mine.py"]}
    late = {"starting_offsets": "latest", "starting_timestamp": "2030-01-01T00:00:00Z"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game_events.yaml").write_text(json.dumps({"kafka_topic": "mine", **source, **outside, **secured, **late}))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in [name for name in os.environ if name.startswith("GAME_EVENTS_")]:
        del os.environ[name]
    used = demo_command._use(tmp_path / "demo", state)
    assert (used.kafka_topics, used.kafka_bootstrap_servers) == (("mine_demo",), state.kafka_bootstrap_servers)
    assert (used.kafka_assign, used.kafka_options, used.extensions) == ({}, {}, ())
    assert (used.starting_offsets, used.starting_timestamp) == ("earliest", None)
    assert [getattr(used, name) for name in outside] == [None] * 4


def test_a_count_of_a_column_that_may_be_null_is_not_compared_with_the_records_sent():
    columns = {"all": "count(*)", "keys": "count(gamer_id)", "custom": "count(col_custom_1)", "first": "min(event_timestamp)"}
    compared = truths(load_settings(gold_columns=columns))
    assert [column for column, known in compared.items() if known is None] == ["custom"]


@pytest.mark.scenario
def test_the_demo_is_exact_keeps_its_tables_and_leaves_nothing_running(demo, tmp_path):
    said, body = demo()
    assert body["success"] is True
    rows = body["rows"]
    assert rows["kafka"] == rows["bronze"] + rows["quarantine"]
    assert rows["quarantine"] > 0
    assert len(body["schema_versions"]) == 3
    assert body["columns_appeared"]
    assert "chess" in body["games"]
    assert len(body["games"]) == 8
    assert Path(body["lakehouse"]).is_relative_to(tmp_path)
    assert (Path(body["lakehouse"]) / "gold_chess_player_agg/_delta_log").is_dir()
    assert "gold of 160 gamers in 8 games equals what the producer sent: yes" in said
    # README.md shows what a user will see.
    (shown,) = [block.text for block in blocks(PAGES[0]) if block.mark == RUN_BY]
    assert missing(shown, said) == ""


@pytest.mark.scenario
def test_a_studios_events_of_two_clusters_without_frames_under_several_names_and_sent_twice_are_booked_exactly(
    demo, cli, spark, monkeypatch
):
    said, body = demo("--example", "studio")
    assert body["success"] is True
    assert {(book["source"], book["topic"]) for book in body["books"]} == {
        ("live", "events"),
        ("live", "chess.telemetry"),
        ("mobile", "sessions"),
    }
    for book in body["books"]:
        assert book["sent"] == book["bronze"] + book["quarantine"]
        assert book["bronze"] == book["silver"] + book["duplicates"]
        assert min(book["quarantine"], book["duplicates"]) > 0
    assert body["games"] == ["chess", "rummy", "uno"]
    assert "gold of 120 players in 3 games equals what the producers sent once: yes" in said
    monkeypatch.setenv("GAME_EVENTS_LAKEHOUSE", body["lakehouse"])
    spark.read.format("delta").load(f"{body['lakehouse']}/silver_rummy_events").createOrReplaceTempView("silver_rummy_events")
    statements = [block.text for block in blocks(DOCS / "questions.md") if block.mark == RUN_BY]
    for statement, (answer, wanted) in zip(statements, answers().items(), strict=True):
        assert [tuple(map(in_utc, row)) for row in spark.sql(statement).collect()] == wanted, answer
        shown = cli("sql", statement, "--json", "--limit", "1000").result["rows"]
        assert shown == json.loads(json.dumps(wanted, default=lambda time: time.isoformat())), answer


def in_utc(value):
    """Spark's times have no zone: in Python they are those of the machine's."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def answers():
    """What docs/questions.md asks of the studio's rummy, by plain Python over what was sent."""
    mine = [e for seed in range(2) for e in events(RECORDS, seed) if e.game == "rummy"]
    of_day, types = defaultdict(list), defaultdict(lambda: defaultdict(list))
    for event in mine:
        of_day[event.time.date()].append(event.player)
        if event.topic == "events":
            types[event.kind][event.player].append(event.time)
    days = defaultdict(set)
    for day, players in of_day.items():
        for player in players:
            days[player].add(day)
    started, completed = types[MESSAGES.index("LevelStart")], types[MESSAGES.index("LevelComplete")]
    cohorts = defaultdict(list)
    for seen in days.values():
        cohorts[min(seen)].append([min(seen) + timedelta(days=n) in seen for n in (1, 2, 3)])
    newest = {e.player: e for e in sorted(mine, key=lambda e: (e.time, e.event_id))}
    return {
        "active players": [(day, len(set(players)), len(players)) for day, players in sorted(of_day.items())],
        "funnel": [(len(started), sum(max(completed[p], default=min(start)) > min(start) for p, start in started.items()))],
        "retention": [(day, len(of), *map(sum, zip(*of, strict=True))) for day, of in sorted(cohorts.items())],
        "last state": [(p, *state_of(newest[p])) for p in sorted(newest)],
    }


def state_of(event):
    name = f"studio.{MESSAGES[event.kind]}" if event.topic == "events" else SESSION
    return name, "3.1" if event.topic == "events" else None, event.time


@pytest.fixture
def shared_stack(stack, spark, tmp_path, monkeypatch):  # noqa: ARG001 - the runs find it
    """The demo in this process, on the servers of the tests instead of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_command.local_stack, "up", lambda *_, **__: stack)
    monkeypatch.setattr(demo_command.local_stack, "down", lambda *_, **__: True)
    before = dict(os.environ)
    monkeypatch.setenv("GAME_EVENTS_KAFKA_TOPIC", f"demo_{uuid.uuid4().hex[:8]}")
    monkeypatch.delenv("DAGSTER_HOME")
    monkeypatch.setenv("GAME_EVENTS_STATE_DIR", str(tmp_path / "state"))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.scenario
@pytest.mark.usefixtures("shared_stack")
@pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated:DeprecationWarning")
def test_the_demo_of_another_domain_is_exact_with_the_same_code(cli):
    found = cli("demo", "--example", "iot", "--json")
    assert found.code == 0, found.everything
    said, body = found.err, found.result
    assert body["success"] is True
    rows = body["rows"]
    assert rows["kafka"] == rows["bronze"] + rows["quarantine"]
    assert rows["quarantine"] > 0
    assert body["columns_appeared"] == ["col_custom_2"]
    assert body["games"] == ["berlin", "lyon", "oslo", "porto"]
    assert "gold of 40 devices in 4 sites equals what the producer sent: yes" in said
    assert {"readings", "last_seen", "max_temperature", "avg_temperature", "min_battery"} <= set(body["columns_compared"])
    # docs/domains.md shows this, too.
    (shown,) = [block.text for block in blocks(DOCS / "domains.md") if block.mark == RUN_BY and block.language == "text"]
    assert missing(shown, said) == ""
    names = {path.name for path in Path(body["lakehouse"]).iterdir()}
    assert {"bronze_readings", "quarantine_readings", "silver_oslo_readings", "gold_oslo_devices"} <= names
    assert not [name for name in names if "game" in name or "player" in name or name.endswith("_events")]


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []
