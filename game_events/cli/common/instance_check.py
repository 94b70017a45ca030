"""The check of `doctor` whether the Dagster instance has what this project needs (docs/dagster.md); Dagster is not imported."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from game_events.cli.common.dagster_home import INSTANCE_FILE
from game_events.pipeline.runs.preflight import Hint

LOGGER = "game_events"
#: What a `dagster.yaml` can lack, and what comes of it.
NO_POOLS = "no pool limit (concurrency.pools.default_limit): two runs may do the same layer's work twice"
NO_MONITORING = "no run monitoring (run_monitoring.enabled): a run that never starts or never stops is not ended"
NO_LOGGER = f"the logger {LOGGER} is not managed (python_logs.managed_python_loggers): progress is in no run's log"


def check_instance(home: Path) -> str:
    """What the instance in a folder lacks, as its `dagster.yaml` says; a hint, no failure: runs are right without it."""
    if not home.is_dir() or not any(home.iterdir()):
        return f"{home}: made by the first run"
    file = home / INSTANCE_FILE
    found = yaml.safe_load(file.read_text()) if file.exists() else {}
    lacks = missing_in(found if isinstance(found, Mapping) else {})
    if not lacks:
        return f"{home}: limits its pools, monitors runs, shows their progress"
    return Hint(f"{file}: {'; '.join(lacks)}; docs/dagster.md has what to add")


def missing_in(config: Mapping[str, Any]) -> list[str]:
    """What the content of a `dagster.yaml` lacks."""
    concurrency = _part(config, "concurrency")
    # The second name is of Dagster's versions before pools.
    limited = "default_limit" in _part(concurrency, "pools") or "default_op_concurrency_limit" in concurrency
    managed = {"root", LOGGER} & set(_part(config, "python_logs").get("managed_python_loggers") or ())
    monitored = _part(config, "run_monitoring").get("enabled", False)
    found = {NO_POOLS: limited, NO_MONITORING: monitored, NO_LOGGER: managed}
    return [lack for lack, there in found.items() if not there]


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, Mapping) else {}
