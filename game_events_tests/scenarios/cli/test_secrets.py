"""Secrets appear nowhere: runs with everything at DEBUG; every byte that they, and commands after them, wrote is read."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from game_events.config.settings import Settings
from game_events.plugins.local.producer.produce import produce
from game_events.plugins.local.producer.simulator import Simulation
from game_events_tests.support.servers.object_store import BUCKET, KEY, SECRET, ObjectStore
from game_events_tests.support.servers.webhook import TOKEN, Receiver

USER = "reader"
REGISTRY_SECRET = "planted-registry-4c1f9a"
KAFKA_SECRET = "planted-kafka-83be20"
KEY_PASSWORD = "planted-key-password-19aa"
SESSION_TOKEN = "planted-session-77d0e4"
LINEAGE_KEY = "planted-lineage-5ae310"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: The command line with every Python logger at DEBUG, into a file: steps of a name, further settings and commands, each with
#: streams of its own; the exit codes of the steps' last commands are in a file.
LOUD = """
import json, logging, os, sys
logging.basicConfig(filename="python.log", level=logging.DEBUG)
from game_events.cli.main import main
codes = []
steps = json.loads(sys.argv[1])
for name, settings, *commands in steps:
    for number, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(settings)
    for command in commands:
        sys.argv = ["game-events", *command.split()]
        try:
            main()
        except SystemExit as ended:
            last = ended.code
    sys.stdout.flush()
    for key in settings:
        del os.environ[key]
    codes.append(last)
with open("codes.json", "w") as file:
    json.dump(codes, file)
"""
DAGSTER = """
telemetry: {enabled: false}
python_logs: {managed_python_loggers: [root, game_events], python_log_level: DEBUG}
"""
AFTERWARDS = (
    "tables",
    "log",
    "quarantine",
    "report --out report.html",
    "doctor --json",
    "sql --json FROM/**/bronze_events",
    "log --json",
)


def environment_of(settings: Settings, store: ObjectStore, folder: Path, webhook: str) -> dict[str, str]:
    """A user's environment with a secret in each place that takes one, and every log turned on."""
    events = folder / "spark-events"
    events.mkdir()
    kafka = {
        "sasl.username": USER,
        "sasl.password": KAFKA_SECRET,
        "ssl.key.password": KEY_PASSWORD,
        "debug": "all",
        "log_level": "7",
    }
    spark = {
        "spark.log.level": "DEBUG",
        "spark.ui.enabled": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    return os.environ | {
        "DAGSTER_HOME": str(folder / "dagster"),
        "RUST_LOG": "debug",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": SESSION_TOKEN,
        "GAME_EVENTS_STATE_DIR": str(folder / "state"),
        "GAME_EVENTS_LAKEHOUSE": f"s3://{BUCKET}/{settings.kafka_topic}",
        "GAME_EVENTS_STORAGE_ENDPOINT": store.endpoint,
        "GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "GAME_EVENTS_KAFKA_TOPIC": settings.kafka_topic,
        "GAME_EVENTS_SCHEMA_REGISTRY_URL": settings.schema_registry_url,
        "GAME_EVENTS_SCHEMA_REGISTRY_USER": USER,
        "GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD": REGISTRY_SECRET,
        "GAME_EVENTS_KAFKA_OPTIONS": json.dumps(kafka),
        "GAME_EVENTS_ALERT_WEBHOOK_URL": webhook,
        "GAME_EVENTS_OPENLINEAGE_API_KEY": LINEAGE_KEY,
        "GAME_EVENTS_SPARK_MASTER": "local[2]",
        "GAME_EVENTS_SPARK_CONF": json.dumps(spark),
    }


def run(folder: Path, environment: dict[str, str], *steps: tuple[object, ...]) -> list[int]:
    """Steps, one after another, in a process of their own; their exit codes."""
    with (folder / "all.err").open("wb") as err:
        command = [sys.executable, "-c", LOUD, json.dumps(steps)]
        subprocess.run(command, cwd=folder, env=environment, stdout=err, stderr=err, check=False)
    file = folder / "codes.json"
    assert file.exists(), (folder / "all.err").read_text(errors="replace")[-3000:]
    return [int(code) for code in json.loads(file.read_text())]


def everything_written(folder: Path, store: ObjectStore, prefix: str) -> Iterator[tuple[str, bytes]]:
    """Each file and object; rows of Parquet as text, as they are compressed."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()
    files = store.files()
    for name in store.names(prefix):
        with files.open_input_file(name) as source:
            body = source.read()
        yield name, body
        if name.endswith(".parquet"):
            yield f"rows of {name}", repr(pq.read_table(io.BytesIO(body)).to_pylist()).encode()


def test_no_secret_is_in_any_output_log_event_plan_or_table(settings: Settings, store: ObjectStore, tmp_path: Path) -> None:
    sent = produce(settings, Simulation(games=("rummy",), records_per_game_and_version=5, poison_share=0.2))
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / "dagster.yaml").write_text(DAGSTER)
    with Receiver().running() as inbox, Receiver().running() as lineage:
        environment = environment_of(settings, store, tmp_path, inbox.url)
        environment["GAME_EVENTS_OPENLINEAGE_URL"] = f"http://{lineage.url.split('/')[2]}"
        away = {"GAME_EVENTS_SCHEMA_REGISTRY_URL": "http://127.0.0.1:9"}
        here = {"GAME_EVENTS_SCHEMA_REGISTRY_URL": environment.pop("GAME_EVENTS_SCHEMA_REGISTRY_URL")}
        codes = run(
            tmp_path,
            environment,
            ("run", here, "run --json"),
            ("more", here, "produce --games rummy --records 2 --versions 9 --seed 2"),
            ("failing", away, "run --json"),
            ("afterwards", here, *AFTERWARDS),
        )
    assert codes == [0, 0, 1, 0], (tmp_path / "run.err").read_text(errors="replace")[-3000:]
    assert inbox.events == ["run_failed"]
    assert {h["Authorization"] for h in lineage.headers} == {f"Bearer {LINEAGE_KEY}"}
    written_to_others = "".join(map(str, lineage.bodies)).encode()
    assert json.loads((tmp_path / "run.out").read_text().splitlines()[-1])["rows"]["bronze"] == sent.decodable

    written = dict(everything_written(tmp_path, store, settings.kafka_topic))
    # It was as loud as it was meant to be, and all of it is looked at.
    assert b"DEBUG" in written["python.log"]
    assert b" DEBUG " in written["run.err"]
    assert b"rdkafka" in written["run.err"]
    assert any(name.startswith("spark-events/") and b"SparkListenerEnvironmentUpdate" in body for name, body in written.items())
    assert any(name.endswith(".db") for name in written)
    assert any("rows of" in name and "event_log" in name for name in written)
    assert b"rummy" in written["report.html"]
    assert b"conditional puts hold" in written["afterwards.out"]

    planted = [REGISTRY_SECRET, KAFKA_SECRET, KEY_PASSWORD, SECRET, SESSION_TOKEN, TOKEN, LINEAGE_KEY]
    needles = [text.encode() for text in planted] + [base64.b64encode(f"{USER}:{REGISTRY_SECRET}".encode())]
    written["lineage"] = written_to_others
    assert [(name, needle) for name, body in written.items() for needle in needles if needle in body] == []
