"""`python -m game_events_tests.scenarios.orchestration.shared_instance_run`: what test_shared_instance.py ticks, left alone.

A real daemon with all sensors on runs two lakehouses and the location of another team for minutes, on PostgreSQL; once a run
of `prod` is killed. Prints what the runs, tables and alerts of each owner came to, and what is wrong with them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from game_events.config.settings import Settings, load_settings
from game_events.lakehouse.data.reading import row_count
from game_events.lakehouse.tables import BRONZE, Lakehouse
from game_events.orchestration.runs import PROCESS_TAG, repository_of
from game_events_tests.support.docs.pages import blocks
from game_events_tests.support.servers.postgres import postgres
from game_events_tests.support.servers.webhook import Receiver
from game_events_tests.support.waiting import until
from game_events_tests.support.worlds.file_samples import PROTO, parquet, put

PAGE = Path(__file__).parents[3] / "docs" / "dagster.md"
PREFIXES = {"prod": "", "dev": "dev_"}
#: Rows of a file, and seconds between two files.
ROWS, EVERY_S = 100, 30
LOCATION = """
import json, pathlib
from game_events.config.settings import load_settings
from game_events.definitions import build_defs
defs = build_defs(load_settings(**json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())))
"""
#: Their `refresh` is often at work, their `continuous` always fails.
OTHER_TEAM = """
import time, dagster as dg
@dg.op
def work(): time.sleep(25)
@dg.op
def fail(): raise RuntimeError("theirs")
@dg.job
def refresh(): work()
@dg.job
def continuous(): fail()
@dg.sensor(jobs=[refresh, continuous], minimum_interval_seconds=60, default_status=dg.DefaultSensorStatus.RUNNING)
def theirs(_):
    now = str(time.time())
    yield dg.RunRequest(run_key="refresh" + now, job_name="refresh")
    yield dg.RunRequest(run_key="continuous" + now, job_name="continuous")
defs = dg.Definitions(jobs=[refresh, continuous], sensors=[theirs], executor=dg.in_process_executor)
"""


def make_locations(folder: Path, webhooks: dict[str, str]) -> dict[str, Settings]:
    """Write the three locations and their workspace; returns the settings of the lakehouses."""
    (folder / "event.proto").write_text(PROTO)
    (folder / "other_team.py").write_text(OTHER_TEAM)
    found = {}
    for owner, webhook in webhooks.items():
        settings: dict[str, Any] = {
            "source": "files",
            "files_path": str(folder / "landing"),
            "files_schema": str(folder / "event.proto"),
            "files_message_type": "shop.Event",
            "files_settle_s": 1,
            "lakehouse": str(folder / "lakehouse"),
            "names": {"prefix": PREFIXES[owner]},
            "state_dir": str(folder / "state"),
            "spark_master": "local[1]",
            "alert_webhook_url": webhook,
            "run_history_h": 0.03,  # old runs are deleted while others' stay
        }
        (folder / f"{owner}.py").write_text(LOCATION)
        (folder / f"{owner}.json").write_text(json.dumps(settings))
        found[owner] = load_settings(**settings)
    files = [{"python_file": {"relative_path": f"{name}.py", "location_name": name}} for name in (*webhooks, "other_team")]
    (folder / "workspace.yaml").write_text(json.dumps({"load_from": files}))
    return found


@contextmanager
def daemon(folder: Path) -> Iterator[None]:
    """The daemon, with the code servers that it starts."""
    with (folder / "daemon.log").open("wb") as log:
        command = [sys.executable, "-m", "dagster._daemon", "run", "-w", "workspace.yaml"]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def kill_one(instance: DagsterInstance) -> str:
    """Kill the process of a run of `prod`, as soon as there is one; returns the run's id."""
    found: list[DagsterRun] = []

    def working() -> bool:
        runs = instance.get_runs(RunsFilter(job_name="refresh", statuses=[DagsterRunStatus.STARTED]))
        found[:] = [run for run in runs if PROCESS_TAG in run.tags and owner_of(run) == "prod"]
        return bool(found)

    until(working, what="a run of prod")
    os.kill(int(found[0].tags[PROCESS_TAG].split(":")[1]), signal.SIGKILL)
    return found[0].run_id


def owner_of(run: DagsterRun) -> str:
    """The location that a run was started from."""
    return (repository_of(run) or "@?").split("@")[1]


def rows_of(settings: Settings) -> tuple[int, int]:
    """Rows in bronze, and in silver of all games."""
    lakehouse = Lakehouse.of(settings)
    tables = [lakehouse.table(BRONZE), *(lakehouse.silver(game) for game in lakehouse.games())]
    counts = [row_count(handle) if (handle := table.open()) else 0 for table in tables]
    return counts[0], sum(counts[1:])


def run(minutes: float, folder: Path) -> list[str]:
    """Let all of it run; prints figures, returns what is wrong."""
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        receivers = {owner: stack.enter_context(Receiver().running()) for owner in PREFIXES}
        os.environ |= server.environment | {"DAGSTER_HOME": str(folder)}
        (block,) = [b for b in blocks(PAGE) if "postgres_db" in b.text]
        (folder / "dagster.yaml").write_text(block.text)
        lakehouses = make_locations(folder, {owner: receiver.url for owner, receiver in receivers.items()})
        instance = stack.enter_context(DagsterInstance.from_config(str(folder)))
        seen: dict[str, DagsterRun] = {}
        files, killed, end = 0, "", time.monotonic() + minutes * 60
        with daemon(folder):
            while time.monotonic() < end:
                put(folder / "landing", f"{files}.parquet", parquet(range(files * ROWS, (files + 1) * ROWS)))
                files += 1
                killed = killed or (kill_one(instance) if time.monotonic() > end - minutes * 40 else "")
                time.sleep(EVERY_S)
                seen |= {run.run_id: run for run in instance.get_runs()}
            until(lambda: all(rows_of(s) == (files * ROWS,) * 2 for s in lakehouses.values()), 600, what="the last rows")
            until(lambda: killed in failures(receivers["prod"]), what="the alert of the killed run")
        left = {run.run_id: run for run in instance.get_runs()}
        for owner in (*PREFIXES, "other_team"):
            runs = [run for run in (seen | left).values() if owner_of(run) == owner]
            ended = Counter(f"{run.job_name} {run.status.value.lower()}" for run in runs)
            print(f"{owner}: {len(runs)} runs, {sum(r.run_id not in left for r in runs)} deleted; {dict(ended)}")
        for owner, settings in lakehouses.items():
            print(f"{owner}: {rows_of(settings)} rows in bronze, silver, of {files * ROWS}; {receivers[owner].events}")
        return wrong(seen | left, left, {owner: failures(r) for owner, r in receivers.items()}, killed, instance)


def failures(receiver: Receiver) -> set[str]:
    """Runs that a webhook was told of."""
    return {body["run_id"] for body in receiver.bodies if body["event"] == "run_failed"}


def wrong(
    seen: dict[str, DagsterRun], left: dict[str, DagsterRun], told: dict[str, set[str]], killed: str, instance: DagsterInstance
) -> list[str]:
    """What one owner did to another's runs."""
    owners = {run_id: owner_of(run) for run_id, run in seen.items()}
    found = [
        f"{owner} was told of {owners[run_id]}'s {run_id}"
        for owner in told
        for run_id in told[owner]
        if owners[run_id] != owner
    ]
    theirs = [run for run in seen.values() if owner_of(run) == "other_team"]
    found += [f"deleted: {run.run_id} of other_team" for run in theirs if run.run_id not in left]
    found += [
        f"ended: {r.run_id} of other_team" for r in theirs if r.job_name == "refresh" and r.status == DagsterRunStatus.FAILURE
    ]
    failed = {run.run_id for run in seen.values() if run.status == DagsterRunStatus.FAILURE and owner_of(run) != "other_team"}
    found += [f"failed besides the killed one: {run_id} of {owners[run_id]}" for run_id in failed - {killed}]
    for run_id in failed:
        print(run_id, [e.message for e in instance.all_logs(run_id) if e.dagster_event and e.dagster_event.is_failure])
    return found + ([] if theirs else ["other_team never ran"])


def main() -> int:
    """Exit code 0 if each owner kept its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    folder = Path(tempfile.mkdtemp(prefix="game_events_shared_instance_"))
    print(folder, flush=True)
    found = run(parser.parse_args().minutes, folder)
    print("\n".join(found) or "each owner kept its runs, alerts and progress")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
