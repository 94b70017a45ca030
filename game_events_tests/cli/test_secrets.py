"""Secrets of the settings appear nowhere: one run with everything at DEBUG, and every byte it wrote is looked at."""

import base64
import json
import os
import subprocess
import sys

import pytest

from game_events.producer.produce import produce
from game_events.producer.simulator import Simulation

USER = "reader"
REGISTRY_SECRET = "planted-registry-4c1f9a"
KAFKA_SECRET = "planted-kafka-83be20"
#: The command line with every Python logger at DEBUG, into a file.
LOUD = (
    "import logging, sys; logging.basicConfig(filename='python.log', level=logging.DEBUG);"
    "from game_events.cli.main import main; main()"
)
DAGSTER = """
telemetry: {enabled: false}
python_logs: {managed_python_loggers: [root, game_events], python_log_level: DEBUG}
"""


@pytest.mark.stack
@pytest.mark.parametrize("reachable", [True, False], ids=["a run that works", "a run that fails"])
def test_no_secret_is_in_any_output_log_event_or_table(settings, tmp_path, reachable):
    sent = produce(settings, Simulation(games=("rummy",), records_per_game_and_version=5))
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text(DAGSTER)
    environment = os.environ | {
        "DAGSTER_HOME": str(home),
        "GAME_EVENTS_STATE_DIR": str(tmp_path / "state"),
        "GAME_EVENTS_LAKEHOUSE": str(tmp_path / "lakehouse"),
        "GAME_EVENTS_KAFKA_BOOTSTRAP_SERVERS": settings.kafka_bootstrap_servers,
        "GAME_EVENTS_KAFKA_TOPIC": settings.kafka_topic,
        "GAME_EVENTS_SCHEMA_REGISTRY_URL": settings.schema_registry_url if reachable else "http://127.0.0.1:9",
        "GAME_EVENTS_SCHEMA_REGISTRY_USER": USER,
        "GAME_EVENTS_SCHEMA_REGISTRY_PASSWORD": REGISTRY_SECRET,
        "GAME_EVENTS_KAFKA_OPTIONS": json.dumps({"sasl.username": USER, "sasl.password": KAFKA_SECRET}),
        "GAME_EVENTS_SPARK_MASTER": "local[2]",
        "GAME_EVENTS_SPARK_CONF": json.dumps({"spark.log.level": "DEBUG"}),
    }
    with (tmp_path / "out.log").open("wb") as out, (tmp_path / "err.log").open("wb") as err:
        ended = subprocess.run(
            [sys.executable, "-c", LOUD, "run", "--json"], cwd=tmp_path, env=environment, stdout=out, stderr=err, check=False
        )
    assert ended.returncode == (0 if reachable else 1), (tmp_path / "err.log").read_text()[-3000:]
    body = json.loads((tmp_path / "out.log").read_text().splitlines()[-1])
    assert body["success"] is reachable
    # It was as loud as it was meant to be.
    assert b"DEBUG" in (tmp_path / "python.log").read_bytes()
    assert b" DEBUG " in (tmp_path / "err.log").read_bytes()
    if reachable:
        assert body["rows"]["bronze"] == sent.decodable
    planted = [REGISTRY_SECRET, KAFKA_SECRET]
    needles = [text.encode() for text in planted] + [base64.b64encode(f"{USER}:{REGISTRY_SECRET}".encode())]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in files), "Dagster's event log was not looked at"
    found = [(str(path.relative_to(tmp_path)), n) for path in files for n in needles if n in path.read_bytes()]
    assert found == []
