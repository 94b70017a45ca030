"""`game-events demo --example studio`: two clusters, framed and bare records, aliases, doubles; the books by source."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from game_events.cli.output import Output
from game_events.cli.run import run_and_show
from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.config.settings import Settings, load_settings
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.lakehouse.data.reading import read_arrow
from game_events.lakehouse.tables import BRONZE, QUARANTINE, Lakehouse, Table
from game_events.plugins.local.producer.studio import CLUSTERS, GAMES, Sent, send_studio
from game_events.plugins.local.servers.local_stack import StackState
from game_events.plugins.local.settings import OWN_PARTS

#: Different events of each wave.
RECORDS = 3_000

EXAMPLE = "studio"


def run_studio(output: Output, clusters: Mapping[str, StackState], folder: Path, proto: Path) -> dict[str, object]:
    """Send two waves and run the pipeline after each; returns the demo's result."""
    settings = _use(clusters, folder)
    sent = Sent()
    for wave in range(2):
        output.step(
            f"{wave + 2}. wave {wave + 1}", f": {RECORDS:,} events to {len(CLUSTERS)} topics of {len(clusters)} clusters"
        )
        sent.add(send_studio(settings, clusters, proto, RECORDS, seed=wave))
        result = run_and_show(output, settings)
        if not result.success:
            return {"success": False, "error": result.error or "the run failed"}
    output.step("4. the books")
    return _compared(output, settings, sent)


def _use(clusters: Mapping[str, StackState], folder: Path) -> Settings:
    """Point this process, and the Dagster runs in it, at the demo's own parts."""
    chosen = OWN_PARTS | {"STATE_DIR": str(folder), "LAKEHOUSE": str(folder / "lakehouse")}
    for name, state in clusters.items():
        chosen[f"SOURCES__{name.upper()}__KAFKA_BOOTSTRAP_SERVERS"] = state.kafka_bootstrap_servers
        chosen[f"SOURCES__{name.upper()}__SCHEMA_REGISTRY_URL"] = state.schema_registry_url
    os.environ |= {ENV_PREFIX + key: value for key, value in chosen.items()}
    return load_settings()


def _compared(output: Output, settings: Settings, sent: Sent) -> dict[str, object]:
    lakehouse = Lakehouse.of(settings)
    place = ["_source", "_kafka_topic"]
    bronze = _counts(_rows(lakehouse.table(BRONZE), place))
    rejected = _rows(lakehouse.table(QUARANTINE), [*place, "layer"])
    quarantined = _counts(rejected.filter(pc.equal(rejected.column("layer"), "bronze")))
    silver = Counter[tuple[str, str]]()
    for game in GAMES:
        silver += _counts(_rows(lakehouse.silver(game), place))
    columns = ["source", "topic", "sent", "bronze", "quarantine", "silver", "duplicates"]
    table = []
    balanced = True
    for topic, cluster in CLUSTERS.items():
        key = (cluster, topic)
        duplicates = bronze[key] - silver[key]
        table.append([cluster, topic, sent.records[topic], bronze[key], quarantined[key], silver[key], duplicates])
        decoded = sent.records[topic] - sent.garbage[topic]
        balanced &= bronze[key] == decoded and quarantined[key] == sent.garbage[topic] and duplicates == sent.twice[topic]
    output.table("books by source", columns, table)
    noted = sum(counter(lakehouse.silver(game).open(), Txn.ROWS_DUPLICATE) for game in GAMES)
    balanced &= noted == sent.twice.total()
    wrong = _differences(settings, lakehouse, sent)
    output.say("sent = bronze + quarantine, bronze = silver + duplicates, by source: " + ("yes" if balanced else "NO"))
    players = sum(map(len, sent.truth.values()))
    output.say(
        f"gold of {players} players in {len(sent.truth)} games equals what the producers sent once: "
        + ("yes" if not wrong else f"NO: {wrong[:5]}")
    )
    return {
        "success": balanced and not wrong,
        "books": [dict(zip(columns, row, strict=True)) for row in table],
        "games": sorted(sent.truth),
        "lakehouse": lakehouse.root,
    }


def _rows(table: Table, columns: list[str]) -> pa.Table:
    handle = table.open()
    if handle is None:
        return pa.table({name: pa.array([], pa.string()) for name in columns})
    return read_arrow(table, handle, columns)


def _counts(rows: pa.Table) -> Counter[tuple[str, str]]:
    """(source, topic) -> rows."""
    counted = rows.group_by(["_source", "_kafka_topic"]).aggregate([([], "count_all")])
    return Counter({(row["_source"], row["_kafka_topic"]): row["count_all"] for row in counted.to_pylist()})


def _differences(settings: Settings, lakehouse: Lakehouse, sent: Sent) -> list[str]:
    """Where gold differs from what was sent once; empty if nowhere."""
    wrong = []
    for game, players in sent.truth.items():
        table = lakehouse.gold(game)
        handle = table.open()
        stored = {} if handle is None else {row[settings.key_column]: row for row in read_arrow(table, handle).to_pylist()}
        for player in sorted(players.keys() | stored.keys()):
            wanted = players[player].model_dump(exclude={"numbers"}) if player in players else None
            found = {name: stored[player][name] for name in wanted or ()} if player in stored else None
            if found != wanted:
                wrong.append(f"{game}/{player}: {found} is not {wanted}")
    return wrong
