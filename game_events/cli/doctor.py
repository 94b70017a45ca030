"""`game-events doctor`: checks everything a run needs, and says what to do about what is missing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import typer

from game_events.assets.resources import SparkResource
from game_events.cli.options import Json
from game_events.cli.output import Output
from game_events.errors import GameEventsError
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.check_rules import check_rules
from game_events.pipeline.context import Pipeline
from game_events.settings import Settings, load_settings
from game_events.sources.kafka import KafkaTopic
from game_events.sources.registry import SchemaRegistry
from game_events.stack.jars import resolve
from game_events.stack.java import find_java


def doctor(as_json: Json = False) -> None:
    """Check Java, the Java parts, Kafka, the registry and the lakehouse; exit code 1 if one of them fails."""
    output = Output(as_json=as_json)
    settings = load_settings()
    checks: dict[str, Callable[[Settings], str]] = {
        "java": lambda _: str(find_java()),
        "java parts": lambda _: f"{len(resolve().spark)} jars for Spark, broker and registry",
        "kafka": _kafka,
        "schema registry": _registry,
        "lakehouse": _lakehouse,
        "rules": _rules,
    }
    found: list[dict[str, object]] = []
    for name, check in checks.items():
        try:
            found.append({"check": name, "ok": True, "detail": check(settings)})
        except (GameEventsError, OSError) as error:
            found.append({"check": name, "ok": False, "detail": str(error)})
    output.table("doctor", ("check", "", "detail"), [(f["check"], "ok" if f["ok"] else "FAILED", f["detail"]) for f in found])
    healthy = all(f["ok"] for f in found)
    output.result({"success": healthy, "checks": found})
    if not healthy:
        raise typer.Exit(1)


def _kafka(settings: Settings) -> str:
    found = KafkaTopic(settings).offsets()
    records = sum(found.latest[p] - found.earliest[p] for p in found.latest)
    return f"{settings.kafka_bootstrap_servers}: topic {found.topic}, {len(found.latest)} partitions, {records:,} records"


def _registry(settings: Settings) -> str:
    subject = f"{settings.kafka_topic}-value"
    return (
        f"{settings.schema_registry_url}: subject {subject}, {len(SchemaRegistry(settings).version_numbers(subject))} versions"
    )


def _rules(settings: Settings) -> str:
    # Spark starts only if there are rules to analyze.
    return check_rules(Pipeline(settings, lambda: SparkResource().spark_session))


def _lakehouse(settings: Settings) -> str:
    lakehouse = Lakehouse(settings.lakehouse)
    if "://" in lakehouse.root:
        return f"{lakehouse.root}: {len(lakehouse.names())} tables"
    root = Path(lakehouse.root)
    nearest = next(folder for folder in (root, *root.parents) if folder.is_dir())
    if not os.access(nearest, os.W_OK):
        raise PermissionError(f"{nearest} is not writable for this user (GAME_EVENTS_LAKEHOUSE)")
    with tempfile.TemporaryFile(dir=nearest):
        pass
    return f"{root}: writable, {len(lakehouse.names())} tables"
