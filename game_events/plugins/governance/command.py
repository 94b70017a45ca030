"""`game-events erase`: deletes all rows of the given players, and drops their later records.

Not a Dagster job: Dagster stores the configuration of every run, and the ids would be in it.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from game_events.cli.output import Json, Output
from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import recorded
from game_events.pipeline.reporting.report import RunReport
from game_events.plugins.governance.commits import Erasure, remove_old_files
from game_events.plugins.governance.run import erase as erase_people
from game_events.plugins.governance.run import resume as resume_erasure
from game_events.spark.session import new_session

Ids = Annotated[list[str] | None, typer.Option("--gamer-id", "--key", metavar="ID", help="Whom to erase; may be repeated.")]
File = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A file with one id a line; `-`: standard input, which no process list shows."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count the rows to delete; change nothing.")]
Vacuum = Annotated[bool, typer.Option("--vacuum", help="Remove, now, the files of older versions with their rows, too.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Finish the erasure that was interrupted; its ids are found by their hashes.")
]


def erase(
    gamer_id: Ids = None,
    file: File = None,
    dry_run: DryRun = False,
    vacuum: Vacuum = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Delete all rows of the given players from every table, and drop their later records, from Kafka or a replay."""
    _refuse_together(dry_run=dry_run, vacuum=vacuum, resume=resume, has_ids=bool(gamer_id or file))
    ids = None if resume else _ids(gamer_id or [], file)
    output = Output(as_json=as_json)
    settings = load_settings()
    pipeline = Pipeline(settings, lambda: new_session(settings))
    report = RunReport()
    with output.working("erasing"), recorded(pipeline, report, "erase", observed=not dry_run):
        if ids is None:
            people = resume_erasure(pipeline, report, dry_run=dry_run)
        else:
            people = erase_people(pipeline, report, ids, dry_run=dry_run)
        erasure = report.part(Erasure) or Erasure()
        if vacuum and erasure.finished:
            remove_old_files(pipeline, erasure, people)
    _show(output, erasure)
    errors = _show_errors(output, report)
    success = report.success and (erasure.finished or dry_run)
    output.result({"success": success, "run_id": pipeline.run_id, **erasure.to_dict(), "errors": errors}, success=success)


def _refuse_together(*, dry_run: bool, vacuum: bool, resume: bool, has_ids: bool) -> None:
    """Raise an error for options that contradict each other."""
    if dry_run and vacuum:
        raise typer.BadParameter("a dry run removes nothing", param_hint="--vacuum")
    if resume and has_ids:
        raise typer.BadParameter("it is about those who are on the list already", param_hint="--resume")


def _ids(given: list[str], file: str | None) -> frozenset[str]:
    """The ids, exactly as they are in the events."""
    lines = list(given)
    if file is not None:
        try:
            text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--file: {file} cannot be read ({type(error).__name__}): one id a line, UTF-8") from None
        lines += [line.rstrip("\r") for line in text.split("\n") if line.rstrip("\r")]
    if not lines:
        raise ConfigurationError("no ids given: use --gamer-id (or --key), or --file with a file of them")
    if not all(lines):
        raise ConfigurationError("--gamer-id: an id is empty")
    return frozenset(lines)


def _show(output: Output, erasure: Erasure) -> None:
    rows = [(table, count) for table, count in sorted(erasure.rows.items()) if count]
    what = "rows to delete" if erasure.dry_run else "rows deleted"
    if rows:
        output.table(f"{what} (recomputed gold and unified are not listed)", ("table", "rows"), rows)
    else:
        output.say(f"{what}: none")
    _show_unknown(output, erasure)
    if erasure.dry_run:
        output.say("dry run: nothing was changed")
    elif erasure.vacuumed:
        _show_removed(output, erasure)
    else:
        output.say(
            "older versions of the tables still hold these rows, until maintenance removes their files; `--vacuum` removes "
            "them now"
        )


def _show_errors(output: Output, report: RunReport) -> list[str]:
    """Say which tables failed, and why; returns these sentences."""
    errors = [f"{failed.table}: {failed.error}" for failed in report.errors]
    for error in errors:
        output.say(f"FAILED {error}")
    return errors


def _show_unknown(output: Output, erasure: Erasure) -> None:
    """Rows and ids of which it is not known whose they are."""
    if erasure.unsearchable:
        output.say(
            f"{erasure.unsearchable:,} rows of quarantine do not decode, so their player is unknown. Once they "
            "decode, a replay keeps out those of erased players"
        )
    if erasure.undecoded:
        output.say(
            f"{erasure.undecoded:,} rows of bronze are of message types that are not selected, so their player is unknown. "
            "Once they are decoded, a redecode takes out those of erased players"
        )
    if erasure.lost_ids:
        output.say(
            f"{erasure.lost_ids:,} of the ids are in no row any more. If one is in the bytes of a record that does "
            "not decode, only `game-events erase` with the id itself would find it"
        )


def _show_removed(output: Output, erasure: Erasure) -> None:
    output.say(f"files of older versions removed: {erasure.removed_files.total():,}; a reader that was using one reads again")
    if erasure.kept_files:
        output.say(
            f"{erasure.kept_files.total():,} files were kept because a running job may still commit them: run the same command "
            "again in an hour"
        )
    if erasure.cleaned_logs:
        output.say(f"log entries that named an id were removed: {', '.join(erasure.cleaned_logs)}")
