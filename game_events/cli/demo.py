"""`game-events demo`: the whole system on real parts, twice over, checked against what the producer sent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import typer

from game_events.cli.options import Json
from game_events.cli.output import Output
from game_events.cli.run import run_and_show
from game_events.errors import DataError
from game_events.lakehouse.reading import read_arrow
from game_events.lakehouse.tables import Lakehouse
from game_events.producer.manifest import Manifest
from game_events.producer.produce import produce
from game_events.producer.simulator import DEFAULT_GAMES, Simulation
from game_events.settings import ENV_PREFIX, Settings, load_settings
from game_events.stack import local_stack
from game_events.stack.stack_state import StackState

#: Below the state folder; made anew by each demo and left for looking at.
FOLDER = "demo"
TOPIC = "game_events_demo"
NEW_GAME = "chess"


def demo(as_json: Json = False) -> None:
    """Broker, registry, producer, Spark, Delta and Dagster from nothing to checked tables; leaves nothing running."""
    output = Output(as_json=as_json)
    folder = (load_settings().state_dir / FOLDER).resolve()
    local_stack.down(folder)
    shutil.rmtree(folder, ignore_errors=True)
    output.step("1. local stack", ": an Apache Kafka broker and a schema registry")
    state = local_stack.up(folder, on_progress=output.say)
    try:
        settings = _use(folder, state)
        report = _waves(output, settings)
    finally:
        local_stack.down(folder)
        output.say("local stack stopped")
    output.result(report)
    if not report["success"]:
        raise typer.Exit(1)


def _use(folder: Path, state: StackState) -> Settings:
    """Point this process, and the Dagster run in it, at the demo's own parts."""
    chosen = {
        "STATE_DIR": str(folder),
        "LAKEHOUSE": str(folder / "lakehouse"),
        "KAFKA_TOPIC": TOPIC,
        "KAFKA_BOOTSTRAP_SERVERS": state.kafka_bootstrap_servers,
        "SCHEMA_REGISTRY_URL": state.schema_registry_url,
        "GAMES": "",
        "RULES": "[]",  # what they keep out would be missing in gold
    }
    os.environ |= {ENV_PREFIX + key: value for key, value in chosen.items()}
    return load_settings()


def _waves(output: Output, settings: Settings) -> dict[str, object]:
    output.step("2. first wave", ": 7 games, schema versions 1 and 2 interleaved; some poison, some late, some twice")
    first = produce(settings, Simulation(poison_share=0.02, late_share=0.05, duplicate_share=0.01))
    output.say(f"{first.records_total:,} records sent, {sum(first.poison.values())} of them undecodable")
    one = run_and_show(output, settings)
    if not one.success:
        return {"success": False, "error": one.error}
    before = _columns(settings, "bronze_events")

    output.step("3. second wave", f": a NEW schema version (3) and a NEW game ({NEW_GAME}), nothing configured")
    second = produce(settings, Simulation(versions=(2, 3), games=(*DEFAULT_GAMES, NEW_GAME), seed=1, poison_share=0.01))
    output.say(f"{second.records_total:,} records sent, {sum(second.poison.values())} of them undecodable")
    two = run_and_show(output, settings)
    if not two.success:
        return {"success": False, "error": two.error}

    output.step("4. what came of it")
    truth = first.merge(second)
    appeared = [c for c in _columns(settings, "bronze_events") if c not in before]
    poison = sum(truth.poison.values())
    bronze, held = _rows(settings, "bronze_events"), _rows(settings, "quarantine_events")
    output.say(f"schema versions seen: {', '.join(map(str, truth.schema_ids))}; columns that appeared: {', '.join(appeared)}")
    output.say(f"Kafka {truth.records_total:,} records = bronze {bronze:,} + quarantine {held:,} (poison kept: {poison})")
    _top(output, settings)
    wrong = differences(settings, truth)
    exact = not wrong and bronze + held == truth.records_total and held == poison
    output.say(
        f"gold of {sum(map(len, truth.truth.values()))} gamers in {len(truth.truth)} games equals what the producer sent: "
        + ("yes" if exact else f"NO: {wrong[:5]}")
    )
    root = Lakehouse.of(settings).root
    output.step("next")
    output.say(f"  look at the tables:    GAME_EVENTS_LAKEHOUSE={root} .venv/bin/game-events tables")
    output.say("  browse the lineage:    make up   (then open the address it prints)")
    return {
        "success": exact,
        "rows": {"kafka": truth.records_total, "bronze": bronze, "quarantine": held},
        "schema_versions": sorted(truth.schema_ids),
        "columns_appeared": appeared,
        "games": sorted(truth.truth),
        "lakehouse": root,
    }


def differences(settings: Settings, manifest: Manifest) -> list[str]:
    """Where gold differs from the producer's own account; empty if nowhere."""
    wrong: list[str] = []
    lakehouse = Lakehouse.of(settings)
    for game, gamers in manifest.truth.items():
        table = lakehouse.gold(game)
        handle = table.open()
        rows = read_arrow(table, handle).to_pylist() if handle is not None else []
        held = {r["gamer_id"]: (r["session_count"], r["min_timestamp"], r["max_timestamp"]) for r in rows}
        sent = {g: (t.session_count, t.min_timestamp, t.max_timestamp) for g, t in gamers.items()}
        wrong += [
            f"{game}/{g}: {held.get(g)} is not {sent.get(g)}"
            for g in sorted(held.keys() | sent.keys())
            if held.get(g) != sent.get(g)
        ]
    return wrong


def _top(output: Output, settings: Settings) -> None:
    table = Lakehouse.of(settings).table("gold_unified_player_agg")
    handle = table.open()
    if handle is None:
        raise DataError(f"{table.uri} is not there")
    rows = sorted(read_arrow(table, handle).to_pylist(), key=lambda r: (-r["session_count"], r["gamer_id"]))[:5]
    columns = ("game_name", "gamer_id", "session_count", "min_timestamp", "max_timestamp")
    output.table("top gamers (gold_unified_player_agg)", columns, [[r[c] for c in columns] for r in rows])


def _columns(settings: Settings, name: str) -> list[str]:
    handle = Lakehouse.of(settings).table(name).open()
    return [f.name for f in handle.schema().fields] if handle is not None else []


def _rows(settings: Settings, name: str) -> int:
    table = Lakehouse.of(settings).table(name)
    handle = table.open()
    return read_arrow(table, handle, ["_kafka_offset"]).num_rows if handle is not None else 0
