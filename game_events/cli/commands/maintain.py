"""`game-events maintain`: small files joined, old ones deleted, logs shortened."""

from typing import Annotated

import typer

from game_events.cli.common.arguments import Json, words
from game_events.cli.common.output import Output
from game_events.cli.common.run_job import run_job
from game_events.cli.common.summary import finish
from game_events.config.settings import load_settings

Tables = Annotated[list[str] | None, typer.Option("--table", help="Only these tables (comma separated, or repeated).")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count what would be done, and do nothing.")]

COLUMNS = ("table", "joined", "into", "renewed", "replaced", "orphans", "waiting", "files")


def maintain(table: Tables = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Join small files, renew outdated ones, delete unneeded ones, shorten logs; no row changes, whoever is at work."""
    output = Output(as_json=as_json)
    with output.working("maintenance"):
        result = run_job(load_settings(), "maintain", {"tables": words(table), "dry_run": dry_run})
    tables = result.report.get("upkeep", {})
    busy = [e for e in tables.values() if e["joined"] or e["renewed"] or e["replaced"] or e["orphans"]]
    if busy:
        title = "files that would be joined, renewed or deleted" if dry_run else "files joined, renewed and deleted"
        output.table(title, COLUMNS, [[e[c] for c in COLUMNS] for e in busy])
    elif result.report:
        output.say(f"nothing to do for {len(tables)} tables")
    waiting = sum(e["waiting"] for e in tables.values())
    if waiting:
        output.say(
            f"{waiting:,} replaced files stay for the time, for readers still at work (RETENTION_H, DERIVED_RETENTION_H)"
        )
    outdated = sum(e["outdated"] for e in tables.values())
    if outdated:
        output.say(f"{outdated:,} files of an earlier release are left for the next time (docs/maintenance.md)")
    for entry in tables.values():
        if entry["skipped"]:
            output.say(f"{entry['table']}: left for the next time: {entry['skipped']}")
    finish(output, result, "maintenance failed")
