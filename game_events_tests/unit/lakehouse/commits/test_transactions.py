"""Transaction ids are part of the tables: lakehouses that were written by older releases are read by them."""

from __future__ import annotations

import base64
import uuid
from types import SimpleNamespace

import pyarrow as pa
import pytest

from game_events.config.settings import load_settings
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import BronzeIdentity, Txn, games_of, silver_app, types_digest
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.gold.unified import gold_app
from game_events.pipeline.offsets import identity
from game_events.plugins.files.delta_table import TABLE
from game_events.plugins.files.records import FILES
from game_events.sources.source import Partition
from game_events_tests.support.tables import put

TOPIC_ID = base64.b64encode(bytes(range(16))).decode().rstrip("=")
TABLE_ID = str(uuid.UUID(int=7))


def test_no_transaction_id_has_changed_since_the_first_release():
    assert {txn.name: txn.value for txn in Txn} == {
        "KAFKA": "kafka",
        "TABLE": "table",
        "FILES": "files",
        "SOURCE": "source",
        "TOPIC": "topic",
        "EPOCH": "epoch",
        "ARCHIVE": "archive",
        "BATCH": "batch",
        "INCARNATION": "incarnation",
        "ERASURES": "erasures",
        "REPLAY": "replay",
        "FULL_REFRESH": "full_refresh",
        "REDECODE": "redecode",
        "DEFINITION": "definition",
        "MICRO_BATCHES": "micro_batches",
        "QUARANTINE_BEGUN": "quarantine_begun",
        "QUARANTINE_DONE": "quarantine_done",
        "RECORDS_QUARANTINED": "records_quarantined",
        "QUARANTINE_COMMITS": "quarantine_commits",
        "REPLAY_LEFT": "replay_left",
        "DECIDED_BATCH": "decided_batch",
        "DECIDED_INCARNATION": "decided_incarnation",
        "ROWS_DROPPED": "rows_dropped",
        "ROWS_QUARANTINED": "rows_quarantined",
        "ROWS_DUPLICATE": "rows_duplicate",
        "EXPIRED": "expired",
        "RAW_EXPIRED": "raw_expired",
        "ROWS_EXPIRED": "rows_expired",
        "REJECTED_EXPIRED": "rejected_expired",
        "TYPES": "types",
        "BRONZE": "bronze",
        "SILVER": "silver",
        "GOLD": "gold",
        "AGGREGATE": "aggregate",
        "COMMITS": "commits",
        "PROGRESS": "progress",
        "NEXT_FILE": "next_file",
        "EXPORT_RUN": "export_run",
        "GRANTED": "granted",
        "RESTORED": "restored",
    }


def test_ids_of_single_tables_and_partitions_are_as_they_were():
    bronze = BronzeIdentity("an-id", 3)
    assert Partition("events", TOPIC_ID, 4).app == f"kafka:events:{TOPIC_ID}:4"
    assert Partition("events", TOPIC_ID, 4).epoch_app == f"epoch:events:{TOPIC_ID}:4"
    assert Partition("s3://a/b", TABLE_ID, 0, TABLE).app == f"table:{TABLE_ID}"
    assert Partition(FILES, TABLE_ID, 0, FILES).app == f"files:{TABLE_ID}"
    assert set(identity([Partition("events", TOPIC_ID, 4)])) == {"topic:events:high", "topic:events:low"}
    assert set(identity([Partition("s3://a/b", TABLE_ID, 0, TABLE)])) == {"table:s3://a/b:high", "table:s3://a/b:low"}
    assert (bronze.app, bronze.erased_app) == ("bronze:an-id", "erasures:an-id")
    gold = SimpleNamespace(metadata=lambda: SimpleNamespace(id="an-id"))
    assert (gold_app(gold), Txn.AGGREGATE.of("player_agg")) == ("gold:an-id", "aggregate:player_agg")
    assert Txn.DECIDED_BATCH.of("an-id@3", "chess") == "decided_batch:an-id@3:chess"


@pytest.mark.parametrize(
    ("advance", "suffix"), [({}, "0"), ({"incarnation": 2}, "2"), ({"incarnation": 2, "erasures": 5}, "2:5")]
)
def test_gold_counts_by_content_of_silver(tmp_path, advance, suffix):
    silver = Lakehouse(str(tmp_path)).silver("chess")
    commit(Commit(silver, pa.schema([("a", pa.int64())]), [], {}, {"batch": 1, **advance}, None))
    handle = silver.open()
    assert silver_app(handle) == f"silver:{handle.metadata().id}:{suffix}"


def test_tables_of_message_types_that_settings_have_no_more_are_no_games(tmp_path):
    lakehouse = Lakehouse.of(load_settings(lakehouse=str(tmp_path)))
    digest = types_digest(["rummy:level_start", "rummy:paid"])
    for name, txns in {
        "rummy": {Txn.TYPES: digest},
        "rummy__paid": {},
        "rummy__level_start": {},
        "go__a": {},
        "uno": {},
    }.items():
        put(lakehouse.silver(name), {"game_name": ["a"]}, txns)
    assert games_of(lakehouse) == ["go__a", "rummy", "uno"]
    # One more is perhaps a game: rather a table too many than a game that is not seen.
    put(lakehouse.silver("rummy__new"), {"game_name": ["a"]})
    assert "rummy__new" in games_of(lakehouse)
