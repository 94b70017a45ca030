"""Checks of everything that a run needs, for `doctor`, `run --dry-run` and the job `validate`. Nothing is changed.

All checks are made, also after a failure, so that all problems are reported at once.
"""

import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from deltalake.exceptions import DeltaError

from game_events.config.background import begin_call
from game_events.config.groups.values import ENV_PREFIX
from game_events.config.masking import mask
from game_events.config.settings import Settings, misspelt
from game_events.config.tls import unencrypted
from game_events.errors import ConfigurationError, DataError, GameEventsError
from game_events.jvm.class_archive import HOW_TO_MAKE, archive_of, is_usable
from game_events.jvm.jars import spark_jars
from game_events.jvm.java import find_java
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.storage.options import is_remote
from game_events.lakehouse.store_probe import refuse_unsafe_store
from game_events.lakehouse.system_tables.schema_archive import SchemaArchive
from game_events.lakehouse.tables import BRONZE, OWN_TABLES, Lakehouse, refuse_other_layout
from game_events.lakehouse.unsupported import is_made_again
from game_events.pipeline.bronze.full_refresh_guard import ALLOW
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.backlog import backlog
from game_events.pipeline.runs.selection import Parts, Selection
from game_events.pipeline.schemas.catalog import SchemaCatalog
from game_events.pipeline.silver.admission import most_games
from game_events.pipeline.suppression.driver import recognised
from game_events.schema_registry import SchemaRegistry
from game_events.sources.core.source import FILES
from game_events.sources.factory import make_source, subjects
from game_events.sources.files.source import FileSource

#: Seconds within which broker and registry answer a check; a run waits longer.
WAIT_S = 5.0
#: Checks that wait for other machines or processes: they begin before all others, each after those that it needs.
WAITING = ("kafka", "schema registry", "java", "schemas")
#: Names of message types in the hint of `doctor`.
TYPES_SHOWN = 20


@dataclass(frozen=True)
class PreflightResult:
    """One check.

    `detail`: finding, or problem and remedy. `data`: for programs. `look`: a run can begin, but the finding needs attention.
    """

    check: str
    ok: bool
    detail: str
    data: Mapping[str, object] = field(default_factory=dict)
    look: bool = False

    def to_dict(self) -> dict[str, object]:
        """For `--json`."""
        found = {"check": self.check, "ok": self.ok, "look": self.look, "detail": self.detail}
        return found | ({"data": dict(self.data)} if self.data else {})


class Hint(str):
    """A finding that needs attention, although a run can begin."""

    __slots__ = ()


def many(count: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


#: Returns its finding; raises if something is wrong.
Check = Callable[[], str | tuple[str, Mapping[str, object]]]


def run_checks(
    checks: Mapping[str, Check], settings: Settings, needs: Mapping[str, Collection[str]] | None = None
) -> list[PreflightResult]:
    """Make all checks, those of `WAITING` ahead; secrets are masked. `needs`: name -> checks that have to pass before."""
    found: list[PreflightResult] = []
    begun: dict[str, Future[str | tuple[str, Mapping[str, object]]]] = {}

    def after_its_needs(name: str) -> str | tuple[str, Mapping[str, object]]:
        for other in begun.keys() & set((needs or {}).get(name, ())):
            begun[other].result()
        return checks[name]()

    for name in (name for name in WAITING if name in checks):
        begun[name] = begin_call(partial(after_its_needs, name), name)
    for name, check in checks.items():
        missing = [c.check for c in found if not c.ok and c.check in (needs or {}).get(name, ())]
        if missing:
            found.append(PreflightResult(name, False, f"not known while this fails: {', '.join(missing)}"))
        else:
            found.append(_made(name, begun[name].result if name in begun else check, settings))
    return found


def _made(name: str, check: Check, settings: Settings) -> PreflightResult:
    try:
        answer = check()
    except Exception as error:  # noqa: BLE001 - the other checks are made in any case
        known = isinstance(error, GameEventsError | OSError | DeltaError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        return PreflightResult(name, False, mask(text, settings))
    detail, data = (answer, {}) if isinstance(answer, str) else answer
    return PreflightResult(name, True, str(detail), data, look=isinstance(detail, Hint))


def environment_checks(settings: Settings) -> dict[str, Check]:
    """Checks of the environment."""
    sources: dict[str, Check] = {"kafka": lambda: _kafka(settings), "schema registry": lambda: _registry(settings)}
    if settings.source == FILES:
        sources = {"files": lambda: _files(settings)}
    return {
        "settings": _settings,
        "java": lambda: str(find_java()),
        "java parts": _java_parts,
        **sources,
        **({"message types": lambda: _message_types(settings)} if settings.message_types else {}),
        "lakehouse": lambda: _writable(settings),
        "encryption": lambda: "; ".join(unencrypted(settings)) or "no secret leaves this machine without it",
        "tables": lambda: _tables(Lakehouse.of(settings)) + _no_room(settings),
        "forgotten gamers": lambda: _forgotten(settings),
    }


def run_plan_checks(pipeline: Pipeline, selected: Callable[[], Selection]) -> dict[str, Check]:
    """Checks that show the work of the next run, without Spark. `selected` raises if the options are wrong."""

    def selection() -> str:
        found = selected()
        if Layer.BRONZE in found.full and not pipeline.settings.allow_bronze_full_refresh:
            raise ConfigurationError(f"{pipeline.bronze.name} is protected from a full refresh: {ALLOW}=true allows it")
        parts = [f"brought up to date: {_described(found.update)}"]
        parts += [f"replaced: {_described(found.full)}"] if found.full else []
        return "; ".join([*parts, *found.notices])

    def plan() -> tuple[str, Mapping[str, object]]:
        found = backlog(pipeline)
        records = {str(p): n for p, n in sorted(found.records.items())}
        data = {"records": records, "games": found.games, "rows_waiting": found.rows}
        return str(found), data | {"left_out_until_now": dict(found.readmitted)}

    return {"selection": selection, "plan": plan}


def _described(parts: Parts) -> str:
    return ", ".join(layer if games is None else f"{layer} of {', '.join(sorted(games))}" for layer, games in parts.items())


def subjects_need_broker(settings: Settings) -> bool:
    """Whether the registry's subjects are known only from the broker, whose topics match a pattern, or from another table."""
    return settings.source != FILES and not settings.kafka_topics


def _settings() -> str:
    wrong = misspelt()
    return Hint("; ".join(wrong)) if wrong else f"every variable {ENV_PREFIX}... is a setting"


def _java_parts() -> str:
    jars = spark_jars()
    archived = is_usable(archive_of(jars))
    how = "their classes are archived" if archived else f"no archive of their classes for quick starts: {HOW_TO_MAKE}"
    return f"{len(jars)} jars for Spark, as they are pinned; {how}"


def _kafka(settings: Settings) -> str:
    found = make_source(settings, WAIT_S).snapshot()
    if settings.source_table is not None:
        return f"not used: {settings.source_table} is read, {max(found.latest.values()) - 1} batches"
    parts = []
    for topic in sorted({split.topic for split in found.latest}):
        splits = [split for split in found.latest if split.topic == topic]
        records = sum(found.latest[p] - found.earliest[p] for p in splits)
        parts.append(f"topic {topic}, {many(len(splits), 'partition')}, {many(records, 'record')}")
    return f"{settings.kafka_bootstrap_servers}: {'; '.join(parts)}"


def _files(settings: Settings) -> str:
    source = FileSource(settings, Lakehouse.of(settings), read_only=True)
    found = source.snapshot()
    named = ", ".join(s.format for s in source.schemas()) or "no schema of the settings"
    return (
        f"{source.place.root}: {sum(found.latest.values()) // found.unit:,} files to read or read before, "
        f"{source.counts['waiting']:,} not finished yet; {named}"
    )


def _registry(settings: Settings) -> str:
    registry = SchemaRegistry(settings, WAIT_S, retries=0)
    if subjects_need_broker(settings):
        registry.version_numbers(settings.produced_topic)  # raises if the registry does not answer, whatever the broker does
    try:
        named = subjects(settings, WAIT_S)
    except GameEventsError:
        if not subjects_need_broker(settings):
            raise
        return f"{settings.schema_registry_url}: answers; its subjects are not known while this fails: kafka"
    numbers = {subject: len(registry.version_numbers(subject)) for subject in named}
    parts = [f"subject {subject}, {many(count, 'version')}" for subject, count in numbers.items()]
    return f"{settings.schema_registry_url}: {'; '.join(parts)}"


def _message_types(settings: Settings) -> str:
    """A hint, no failure: with some naming strategies a type is not known before its first record."""
    lakehouse = Lakehouse.of(settings)
    catalog = SchemaCatalog(SchemaRegistry(settings), lakehouse)
    ids = set(SchemaArchive(lakehouse).digests())
    if settings.source != FILES:
        ids |= {i for subject in subjects(settings) for i in catalog.ids_of(subject)}
    known = {name for i in ids for name in catalog.names(i)}
    # Nested messages are not listed.
    missing = [n for n in settings.message_types if n not in known and not any(n.startswith(f"{k}.") for k in known)]
    text = f"decoded are {', '.join(settings.message_types)}"
    if missing and known:
        text += f"; no known schema has {', '.join(missing)}: there are {', '.join(sorted(known)[:TYPES_SHOWN])}"
        text += f" and {len(known) - TYPES_SHOWN} more" if len(known) > TYPES_SHOWN else ""
    return text


def _writable(settings: Settings) -> str:
    lakehouse = Lakehouse.of(settings)
    refuse_other_layout(lakehouse)
    if is_remote(lakehouse.root):
        found = refuse_unsafe_store(lakehouse)
        return f"{lakehouse.root}: writable, {found}, {many(len(lakehouse.names()), 'table')}"
    root = Path(lakehouse.root)
    nearest = next(folder for folder in (root, *root.parents) if folder.is_dir())
    if not os.access(nearest, os.W_OK):
        raise PermissionError(f"{nearest} is not writable for this user (GAME_EVENTS_LAKEHOUSE)")
    with tempfile.TemporaryFile(dir=nearest):
        pass
    return f"{root}: writable, {many(len(lakehouse.names()), 'table')}"


def _tables(lakehouse: Lakehouse) -> str:
    names = lakehouse.names()
    broken = []
    for name in names:
        table = lakehouse.table(name)
        try:
            found = table.open_to_read()
            if found is not None and (name in OWN_TABLES or is_made_again(name)):  # not a table of others
                table.writable(found)
        except (GameEventsError, DeltaError, OSError) as error:
            broken.append(f"{table.name}: {error}")
    if broken:
        raise DataError(f"{len(broken)} of {len(names)} tables cannot be opened: " + "; ".join(broken))
    return f"{many(len(names), 'table')}, each can be opened"


def _no_room(settings: Settings) -> str:
    """A hint, no failure: each run counts the names that have no table."""
    games = len(Lakehouse.of(settings).games())
    if settings.games or games < settings.max_games:
        return ""
    more = f"with {settings.new_game_min_rows:,} rows" if games < most_games(settings) else "of GAME_EVENTS_GAMES"
    return f"; {games:,} {settings.names.entities}, no fewer than GAME_EVENTS_MAX_GAMES: of new names only those {more} come in"


def _forgotten(settings: Settings) -> str:
    lakehouse = Lakehouse.of(settings)
    found = recognised(settings, lakehouse, lakehouse.table(BRONZE).open_to_read())
    if found is None:
        return "none"
    listed, _ = found
    text = f"{len(listed.entries):,} are kept out, recognised by the key that is set"
    if listed.unfinished:
        text += f"; of {len(listed.unfinished):,} the erasure is not finished: repeat `game-events forget`, or use --resume"
    return text
