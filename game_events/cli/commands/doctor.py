"""`game-events doctor`: checks everything a run needs, and says what to do about what is missing.

All that `game-events doctor` checks, and how checks are shown; Dagster is not imported.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from game_events.cli.dagster_run import INSTANCE_FILE, find_dagster_home
from game_events.cli.output import Json, Output
from game_events.cli.shared_spark import spark_session
from game_events.config.settings import load_settings
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.preflight import Check, Hint, PreflightResult, state_checks, validation


def doctor(as_json: Json = False) -> None:
    """Check Java, the Java parts, Kafka, the registry, the lakehouse; exit code 1 if one fails. Then how the tables stand."""
    output = Output(as_json=as_json)
    settings = load_settings()
    pipeline = Pipeline(settings, spark_session)
    instance: dict[str, Check] = {"dagster": lambda: check_instance(find_dagster_home(settings))}
    show_checks(output, "doctor", validation(pipeline, instance | state_checks(pipeline)))


LOGGER = "game_events"

#: What a `dagster.yaml` can lack, and what comes of it.
NO_POOLS = "no pool limit (concurrency.pools.default_limit): two runs may do the same layer's work twice"

NO_MONITORING = "no run monitoring (run_monitoring.enabled): a run that never starts or never stops is not ended"

NO_LOGGER = f"the logger {LOGGER} is not managed (python_logs.managed_python_loggers): progress is in no run's log"


def show_checks(output: Output, title: str, results: Sequence[PreflightResult]) -> None:
    """All of them, also for `run --dry-run`; exit code 1 if one has failed."""
    rows = [(c.check, "FAILED" if not c.ok else "LOOK" if c.look else "ok", c.detail) for c in results]
    output.table(title, ("check", "", "detail"), rows)
    healthy = all(c.ok for c in results)
    output.result({"success": healthy, "checks": [c.to_dict() for c in results]}, success=healthy)


def check_instance(home: Path) -> str:
    """What the instance in a folder lacks, as its `dagster.yaml` says; a hint, no failure: runs are right without it."""
    if not home.is_dir() or not any(home.iterdir()):
        return f"{home}: made by the first run"
    file = home / INSTANCE_FILE
    config = yaml.safe_load(file.read_text()) if file.exists() else {}
    lacks = _missing_in(config if isinstance(config, Mapping) else {})
    if not lacks:
        return f"{home}: limits its pools, monitors runs, shows their progress"
    return Hint(f"{file}: {'; '.join(lacks)}; docs/dagster.md has what to add")


def _missing_in(config: Mapping[str, Any]) -> list[str]:
    concurrency = _part(config, "concurrency")
    # The second name is of Dagster's versions before pools.
    limited = "default_limit" in _part(concurrency, "pools") or "default_op_concurrency_limit" in concurrency
    managed = {"root", LOGGER} & set(_part(config, "python_logs").get("managed_python_loggers") or ())
    monitored = _part(config, "run_monitoring").get("enabled", False)
    there = {NO_POOLS: limited, NO_MONITORING: monitored, NO_LOGGER: managed}
    return [lack for lack, is_there in there.items() if not is_there]


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, Mapping) else {}
