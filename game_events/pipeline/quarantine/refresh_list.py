"""Lists of the files that a full refresh of bronze has staged for quarantine: a small file beside the table for each ticket."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow.fs as pafs

from game_events.lakehouse.data.staging import StagedFile, discard, file_system
from game_events.lakehouse.tables import Table
from game_events.sources.core.source import Split

_LIST = re.compile(r"_reset-(\d+)\.json")


@dataclass(frozen=True)
class ResetList:
    """New content of quarantine when bronze is replaced.

    Attributes:
        batch: batch of bronze's commit.
        ends: split -> offset after its last decided record.
        files: the new rows, not committed.
        origins: splits of the records of files, an archive's too; None: the list is of a version that did not have them.
    """

    batch: int
    ends: Mapping[Split, int]
    files: list[StagedFile]
    origins: frozenset[Split] | None = frozenset()


def lists(table: Table, last: int | None = None) -> Iterator[tuple[int, ResetList]]:
    """(Ticket, list) of each list that there is, up to a last ticket: later ones may be half written."""
    system, prefix = file_system(table)
    found = system.get_file_info(pafs.FileSelector(prefix.rstrip("/"), recursive=False, allow_not_found=True))
    for ticket in [int(match[1]) for info in found if (match := _LIST.fullmatch(info.base_name))]:
        listed = read_list(table, ticket) if last is None or ticket <= last else None
        if listed is not None:
            yield ticket, listed


def keep(table: Table, ticket: int, listed: ResetList) -> None:
    """Write a list."""
    table.require_writable()
    system, prefix = file_system(table)
    body = {
        "batch": listed.batch,
        "ends": [[*split, end] for split, end in sorted(listed.ends.items())],
        "files": [f.to_json() for f in listed.files],
        "origins": sorted(listed.origins or ()),
    }
    written = json.dumps(body).encode()
    # With a buffer for all of it: delta-rs's streams to object stores refuse what Arrow passes on without copying it.
    with system.open_output_stream(prefix + _name(ticket), buffer_size=len(written) + 1) as sink:
        sink.write(written)


def forget(table: Table, ticket: int, files: list[StagedFile]) -> None:
    """Delete the list of a finished or abandoned full refresh and its files; a committed refresh has copied them."""
    table.require_writable()
    system, prefix = file_system(table)
    discard(table, files)
    try:
        system.delete_file(prefix + _name(ticket))
    except FileNotFoundError:
        return


def read_list(table: Table, ticket: int) -> ResetList | None:
    """The list of a ticket; None if there is none."""
    system, prefix = file_system(table)
    try:
        with system.open_input_file(prefix + _name(ticket)) as source:
            body = json.loads(source.read())
    except FileNotFoundError:
        return None
    if "apps" in body:  # of a version with one topic only
        topics = {p: app.split(":")[1:3] for p, app in body["apps"].items()}
        body |= {"batch": 0, "ends": [[*topics[p], int(p), end] for p, end in body["ends"].items()]}
    ends = {Split(*split): int(end) for *split, end in body["ends"]}
    origins = frozenset(Split(*split) for split in body["origins"]) if "origins" in body else None
    return ResetList(int(body["batch"]), ends, [StagedFile.from_json(text) for text in body["files"]], origins)


def _name(ticket: int) -> str:
    # Readers and vacuum skip files with a leading underscore.
    return f"_reset-{ticket}.json"
