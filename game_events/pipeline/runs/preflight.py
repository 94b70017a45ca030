"""Checks of everything that a run needs, for `doctor`, `run --dry-run` and the job `validate`. Nothing is changed.

All checks are made, also after a failure, so that all problems are reported at once. Those of the tables' state, which only
`doctor` makes, keep no run from starting.
"""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructType

from game_events.config.masking import mask
from game_events.config.names import measures
from game_events.config.network import begin_call
from game_events.config.pipeline_settings import ENV_PREFIX
from game_events.config.settings import Settings, misspelt
from game_events.config.sources.several import registry_names, settings_by_source, settings_of_each, settings_or_each
from game_events.decoding.frame import Reason, SchemaId, ordered, registry_of_source
from game_events.decoding.unframed.topics import TopicRules
from game_events.errors import ConfigurationError, DataError, GameEventsError, first_few, many, some_columns
from game_events.jvm.jars import find_java, spark_jars
from game_events.lakehouse.commits.transactions import BronzeIdentity, games_of
from game_events.lakehouse.data.columns import SCHEMA_COLUMNS, SOURCE, has_decoded_columns, id_of_row, is_sourced
from game_events.lakehouse.data.reading import read_arrow, read_parts, row_count, selection
from game_events.lakehouse.storage import is_remote, refuse_unsafe_store
from game_events.lakehouse.system_tables import ProgressTable, read_events
from game_events.lakehouse.table_properties import is_made_again
from game_events.lakehouse.tables import BRONZE, OWN_TABLES, Lakehouse, Layer, is_game, refuse_other_layout
from game_events.pipeline.bronze.full_refresh import ALLOW
from game_events.pipeline.context import Pipeline
from game_events.pipeline.event_log import SUCCEEDED
from game_events.pipeline.gold.plan import of_another_kind, player_agg_columns
from game_events.pipeline.maintenance import outdated_tables, spread_tables
from game_events.pipeline.quality import problems, refuse
from game_events.pipeline.runs.file_layout import require_columns
from game_events.pipeline.runs.pending import backlog, left_out_until_now
from game_events.pipeline.runs.refresh import Parts, Selection
from game_events.pipeline.runs.row_retention import misfits, told
from game_events.pipeline.runs.trial import check_definitions
from game_events.pipeline.schemas.archive import SchemaArchive
from game_events.pipeline.schemas.catalog import SchemaCatalog
from game_events.pipeline.schemas.named import NamedSchemas
from game_events.pipeline.silver.admission import Due, due, most_games
from game_events.pipeline.silver.made_by import other_settings
from game_events.pipeline.silver.stage import SilverInput
from game_events.plugin import parts
from game_events.schema_registry import SchemaRegistry, login_of
from game_events.sources.factory import class_of, make_source, subjects, unencrypted

#: Seconds within which broker and registry answer a check; a run waits longer.
WAIT_S = 5.0
#: Checks that wait for other machines or processes: they begin before all others, each after those that it needs.
WAITING = ("kafka", "schema registry", "java", "schemas")
#: Begin of the names of those of one of several sources.
WAITING_OF_SOURCES = ("kafka ", "schema registry ")
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
        result = {"check": self.check, "ok": self.ok, "look": self.look, "detail": self.detail}
        return result | ({"data": dict(self.data)} if self.data else {})


class Hint(str):
    """A finding that needs attention, although a run can begin."""

    __slots__ = ()


#: Returns its finding; raises if something is wrong.
Check = Callable[[], str | tuple[str, Mapping[str, object]]]


def run_checks(
    checks: Mapping[str, Check], settings: Settings, needs: Mapping[str, Collection[str]] | None = None
) -> list[PreflightResult]:
    """Make all checks, those of `WAITING` ahead; secrets are masked. `needs`: name -> checks that have to pass before."""
    needs = needs or {}
    results: dict[str, PreflightResult] = {}
    begun: dict[str, Future[str | tuple[str, Mapping[str, object]]]] = {}

    def after_its_needs(name: str) -> str | tuple[str, Mapping[str, object]]:
        for other in begun.keys() & set(needs.get(name, ())):
            begun[other].result()
        return checks[name]()

    for name in [name for name in checks if name in WAITING or name.startswith(WAITING_OF_SOURCES)]:
        begun[name] = begin_call(partial(after_its_needs, name), name)
    for name, check in checks.items():
        failed = [result.check for result in results.values() if not result.ok]
        missing = [other for other in failed if other in needs.get(name, ())]
        if missing:
            results[name] = PreflightResult(name, False, f"not known while this fails: {', '.join(missing)}")
        else:
            results[name] = _made(name, begun[name].result if name in begun else check, settings)
    return list(results.values())


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
    return {
        "settings": _settings,
        "java": lambda: str(find_java()),
        "java parts": lambda: f"{len(spark_jars())} jars for Spark, as they are pinned",
        **_source_checks(settings),
        **({"message types": lambda: _message_types(settings)} if settings.message_types else {}),
        **({"decoding": lambda: _decoding(settings)} if any(one.decoding for one in settings_or_each(settings)) else {}),
        **({"tables of types": lambda: _type_tables(settings)} if settings.type_tables is not None else {}),
        "lakehouse": lambda: _writable(settings),
        "encryption": lambda: "; ".join(unencrypted(settings)) or "no secret leaves this machine without it",
        "tables": lambda: _tables(Lakehouse.of(settings)) + _no_room(settings),
        **{name: check for checks in parts("doctor") for name, check in checks(settings).items()},
    }


def _source_checks(settings: Settings) -> dict[str, Check]:
    """Checks of what is read, and of its registry; those of several sources have their names."""
    checks: dict[str, Check] = {}
    for name, one in settings_by_source(settings).items():
        checks[f"{class_of(one).check_name} {name}".strip()] = partial(_source, one)
        if _may_have_subjects(one):
            checks[f"schema registry {name}".strip()] = partial(_registry, one)
    return checks


def _source(settings: Settings) -> str:
    return make_source(settings, WAIT_S).check()


def _type_tables(settings: Settings) -> str:
    lakehouse = Lakehouse.of(settings)
    bronze = lakehouse.table(BRONZE).open_to_read()
    if bronze is not None:
        why = other_settings(settings, ProgressTable(lakehouse).read(BronzeIdentity.of(bronze).key))
        if why is not None:
            raise ConfigurationError(why)
    tables = lakehouse.type_tables()
    listed = ", ".join(settings.silver_types) or "all"
    return f"{sum(map(len, tables.values()))} tables of {len(tables)} {settings.names.entities} for types: {listed}"


def run_plan_checks(pipeline: Pipeline, selected: Callable[[], Selection]) -> dict[str, Check]:
    """Checks that show the work of the next run, without Spark. `selected` raises if the options are wrong."""

    def selection() -> str:
        chosen = selected()
        if Layer.BRONZE in chosen.full and not pipeline.settings.allow_bronze_full_refresh:
            raise ConfigurationError(f"{pipeline.bronze.name} is protected from a full refresh: {ALLOW}=true allows it")
        _refuse_other_settings(pipeline, chosen)
        parts = [f"brought up to date: {_described(chosen.update)}"]
        parts += [f"replaced: {_described(chosen.full)}"] if chosen.full else []
        return "; ".join([*parts, *chosen.notices])

    def plan() -> tuple[str, Mapping[str, object]]:
        pending = backlog(pipeline)
        records = {str(p): n for p, n in sorted(pending.records.items())}
        data: dict[str, object] = {"records": records, "games": pending.games, "rows_waiting": pending.rows}
        data["left_out_until_now"] = dict(pending.readmitted)
        failures = pipeline.source.failures
        if not failures:
            return str(pending), data
        named = "; ".join(f"{name}: {why}" for name, why in failures.items())
        return Hint(f"{pending}; the run would be without {named}"), data | {"sources_left_out": dict(failures)}

    return {"selection": selection, "plan": plan}


def _refuse_other_settings(pipeline: Pipeline, chosen: Selection) -> None:
    """Raise as the run would, if its settings put rows into other tables of silver than those that are there."""
    bronze = pipeline.open_bronze()
    is_made_again = Layer.BRONZE in chosen.full or chosen.full.get(Layer.SILVER, ()) is None
    if bronze is None or Layer.SILVER not in chosen.update or is_made_again:
        return
    why = other_settings(pipeline.settings, pipeline.progress.read(BronzeIdentity.of(bronze).key))
    if why is not None:
        raise ConfigurationError(why)


def _described(parts: Parts) -> str:
    return ", ".join(layer if games is None else f"{layer} of {', '.join(sorted(games))}" for layer, games in parts.items())


def _subjects_need_broker(settings: Settings) -> bool:
    """Whether the registry's subjects are known only from the broker, whose topics match a pattern, or from another table."""
    return class_of(settings).named_subjects(settings) is None


def _may_have_subjects(settings: Settings) -> bool:
    return class_of(settings).named_subjects(settings) != ()


def _settings() -> str:
    wrong = misspelt()
    return Hint("; ".join(wrong)) if wrong else f"every variable {ENV_PREFIX}... is a setting"


def _registry(settings: Settings) -> str:
    registry = SchemaRegistry(settings, WAIT_S, retries=0)
    if _subjects_need_broker(settings):
        registry.version_numbers(settings.produced_topic)  # raises if the registry does not answer, whatever the broker does
    try:
        named = subjects(settings, WAIT_S)
    except GameEventsError:
        if not _subjects_need_broker(settings):
            raise
        return f"{settings.schema_registry_url}: answers; its subjects are not known while this fails: kafka"
    numbers = {subject: len(registry.version_numbers(subject)) for subject in named}
    parts = [f"subject {subject}, {many(count, 'version')}" for subject, count in numbers.items()]
    login = login_of(settings)
    parts += [login] if login else []
    return f"{settings.schema_registry_url}: {'; '.join(parts)}"


def _decoding(settings: Settings) -> str:
    """What is used for each topic without frames; a hint for topics that are not read."""
    lookup = class_of(settings).lookup(settings, partial(SchemaRegistry, timeout_s=WAIT_S, retries=0))
    catalog = SchemaCatalog(lookup, Lakehouse.of(settings))
    named = NamedSchemas(TopicRules.of_settings(settings, settings_of_each(settings)), lookup, catalog)
    texts = []
    idle: set[str] = set()
    for source, one in settings_by_source(settings).items():
        rules = TopicRules.of_settings(one)
        for name, rule in (*rules.exact.items(), *rules.patterns):
            text = named.described(name, rule, registry_of_source(source, catalog.registries))
            texts.append(f"{source}/{text}" if source else text)
        if one.kafka_topics:  # else it is not known before the broker answers which topics a pattern means
            idle |= rules.exact.keys() - set(one.kafka_topics)
    idle -= {topic for one in settings_or_each(settings) for topic in one.kafka_topics}
    said = "; ".join(texts)
    return Hint(f"{said}; no topic of the settings is {', '.join(sorted(idle))}") if idle else said


def _message_types(settings: Settings) -> str:
    """A hint, no failure: with some naming strategies a type is not known before its first record."""
    known = _known_types(settings)
    # A name may be of a type that is nested in a known one: nested types are not listed.
    outer = {f"{name}." for name in known}
    missing = [name for name in settings.message_types if name not in known and not name.startswith(tuple(outer))]
    text = f"decoded are {', '.join(settings.message_types)}"
    if missing and known:
        named = first_few(sorted(known), TYPES_SHOWN, ", ")
        text += f"; no known schema has {', '.join(missing)}: there are {named}"
    return text


def _known_types(settings: Settings) -> set[str]:
    """Message types of the archived schemas, and of those of the topics' subjects."""
    lakehouse = Lakehouse.of(settings)
    catalog = SchemaCatalog(class_of(settings).lookup(settings, SchemaRegistry), lakehouse)
    ids = set(SchemaArchive(lakehouse).digests())
    if _may_have_subjects(settings):
        ids |= {schema_id for subject in subjects(settings) for schema_id in catalog.ids_of(subject)}
    return {name for schema_id in ids for name in catalog.names(schema_id)}


def _writable(settings: Settings) -> str:
    lakehouse = Lakehouse.of(settings)
    refuse_other_layout(lakehouse)
    if is_remote(lakehouse.root):
        how = refuse_unsafe_store(lakehouse.root, lakehouse.options)
        return f"{lakehouse.root}: writable, {how}, {many(len(lakehouse.names()), 'table')}"
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
            handle = table.open_to_read()
            if handle is not None and (name in OWN_TABLES or is_made_again(name)):  # not a table of others
                table.writable(handle)
        except (GameEventsError, DeltaError, OSError) as error:
            broken.append(f"{table.name}: {error}")
    if broken:
        raise DataError(f"{len(broken)} of {len(names)} tables cannot be opened: " + "; ".join(broken))
    return f"{many(len(names), 'table')}, each can be opened"


def _no_room(settings: Settings) -> str:
    """A hint, no failure: each run counts the names that have no table."""
    games = len(games_of(Lakehouse.of(settings)))
    if settings.games or games < settings.max_games:
        return ""
    more = f"with {settings.new_game_min_rows:,} rows" if games < most_games(settings) else "of GAME_EVENTS_GAMES"
    return f"; {games:,} {settings.names.entities}, no fewer than GAME_EVENTS_MAX_GAMES: of new names only those {more} come in"


#: Newest files of the event log that are searched for the last run.
LOOK_BACK_FILES = 20
#: Tables that are opened at most to look at their files: some milliseconds each.
MOST_TABLES = 500
#: Newest versions of a subject that are compiled; names in a text.
VERSIONS, NAMED = 20, 5
#: Newest rows of bronze in which the entity column is looked at; characters of a name in a text.
NEWEST_ROWS, NAME_CHARS = 100_000, 80


def validation(pipeline: Pipeline, more: dict[str, Check]) -> list[PreflightResult]:
    """Check the environment and the SQL of rules, for which alone Spark starts, then more; nothing is changed."""
    checks = environment_checks(pipeline.settings) | sql_checks(pipeline) | more
    registry = ("schema registry", "kafka") if _subjects_need_broker(pipeline.settings) else ("schema registry",)
    # Of several sources one may fail: names without a source are none of these checks.
    needs = {"plan": ("kafka", "tables"), "message types": registry, "schemas": registry}
    return run_checks(checks, pipeline.settings, needs)


def state_checks(pipeline: Pipeline) -> dict[str, Check]:
    """Checks of earlier runs and of the subjects' schemas."""
    checks: dict[str, Callable[[Pipeline], str | tuple[str, Mapping[str, object]]]]
    checks = {"schemas": schemas} if _may_have_subjects(pipeline.settings) else {}
    checks |= {"last run": last_run, "waiting": waiting, "quarantine": quarantine}
    checks |= {"columns": columns, "names": names, "statistics": statistics}
    checks |= {"layout": layout} if pipeline.settings.layout or pipeline.settings.statistics_columns else {}
    checks |= {"rows by age": rows_by_age} if pipeline.settings.row_retention is not None else {}
    return {name: partial(check, pipeline) for name, check in checks.items()}


def newest_run(lakehouse: Lakehouse) -> Mapping[str, Any] | None:
    """The row of the newest run in the event log, if there is one; its time is in UTC, without a zone."""
    newest = read_events(lakehouse, newest_files=LOOK_BACK_FILES, kind="run").sort_by([("time", "descending")]).slice(0, 1)
    # To make Python's times of times with a zone Arrow imports pandas.
    without_zone = newest.schema.set(newest.schema.get_field_index("time"), pa.field("time", pa.timestamp("us")))
    return next(iter(newest.cast(without_zone).to_pylist()), None)


def last_run(pipeline: Pipeline) -> str:
    """Status of the newest run in the event log; a hint if it failed."""
    run = newest_run(pipeline.lakehouse)
    if run is None:
        return "none is in the event log"
    text = f"{run['name']} {run['status']} at {run['time']:%Y-%m-%d %H:%M:%S} UTC"
    if run["status"] == SUCCEEDED:
        return text
    error = (json.loads(run["detail"]) if run["detail"] else {}).get("error") or {}
    why = f": {' '.join(str(error.get('text', '')).split())[:300]}" if error else ""
    return Hint(f"{text}{why}; `game-events log --run {run['run_id'][:8]}` has all of it")


def waiting(pipeline: Pipeline) -> str:
    """Rows of bronze that are not in silver, and failed games: work of the next run; and rows that the settings leave out."""
    bronze = pipeline.open_bronze()
    if bronze is None:
        return "there is no bronze table yet"
    owed = due(pipeline)
    state = pipeline.progress.read(BronzeIdentity.of(bronze).key)
    rows = owed.rows.total()
    text = f"{many(rows, 'row')} of {pipeline.bronze.name} {'waits' if rows == 1 else 'wait'} for silver"
    if owed.readmitted:
        text += f", {left_out_until_now(owed.readmitted)}"
    failed = {game: why for (_, game), why in state.failed.items() if game not in owed.held}
    if failed:
        games = sorted(owed.failed or failed)
        text += f"; tables of {first_few(games, NAMED, ', ')} failed, or are to be rebuilt: {next(iter(failed.values()))}"
    text += _left_out(pipeline, owed)
    return Hint(f"{text}: `game-events run`") if rows or failed else text


def _left_out(pipeline: Pipeline, owed: Due) -> str:
    """Rows that stay in bronze as long as the settings are what they are."""
    text = ""
    if owed.left_out.last:
        by = "GAME_EVENTS_GAMES leaves" if pipeline.settings.games else "the limits of games leave"
        text += f"; {by} out names in batches {owed.left_out.first} to {owed.left_out.last} of {pipeline.bronze.name}"
    if owed.held:
        text += f"; GAME_EVENTS_GAMES lacks games to be retried: {first_few(sorted(owed.held), NAMED, ', ')}"
    return text


def quarantine(pipeline: Pipeline) -> str:
    """Records that wait in quarantine for a schema."""
    handle = pipeline.open_quarantine()
    if handle is None:
        return "nothing is in it"
    rows = read_arrow(pipeline.quarantine, handle, ["reason", "replayed_batch"])
    counts = _counts(rows.filter(pc.is_null(rows["replayed_batch"]))["reason"])
    by_reason = ", ".join(f"{why} {rows:,}" for why, rows in counts.most_common())
    text = many(counts.total(), "row") + (f": {by_reason}" if counts else "")
    needs_schema = counts.keys() & {Reason.BAD_SCHEMA, Reason.UNKNOWN_SCHEMA, Reason.REGISTRY_CHANGED}
    return Hint(f"{text}; `game-events quarantine list` says why") if needs_schema else text


def schemas(pipeline: Pipeline) -> str:
    """Whether schemas can be used: the newest versions of the subjects, and those that quarantined records name."""
    bad = list[str]()
    left_out = 0
    ids: set[SchemaId] = {i for subject in subjects(pipeline.settings) for i in pipeline.catalog.ids_of(subject)[-VERSIONS:]}
    ids |= _quarantined_ids(pipeline)
    for schema_id in sorted(ids, key=ordered):
        try:
            pipeline.catalog.messages(schema_id)
            left_out += pipeline.catalog.left_out(schema_id)
        except DataError as error:
            bad.append(" ".join(str(error).split()))
    if not bad:
        text = f"{many(len(ids), 'schema')} {'compiles' if len(ids) == 1 else 'compile'}"
        return f"{text}; {many(left_out, 'message type')} of very large ones not looked at" if left_out else text
    return Hint(f"{len(bad)} of {len(ids)} cannot be used, their records are quarantined: {'; '.join(bad[:NAMED])}")


def _quarantined_ids(pipeline: Pipeline) -> set[SchemaId]:
    """Ids with most of the records that wait in quarantine for another schema: perhaps of no subject of the settings."""
    handle = pipeline.open_quarantine()
    if handle is None:
        return set()
    of_ids = [*SCHEMA_COLUMNS, *([SOURCE] if is_sourced(handle) else [])]
    rows = read_arrow(pipeline.quarantine, handle, ["reason", "replayed_batch", *of_ids])
    reasons = pa.array([str(Reason.BAD_SCHEMA), str(Reason.REGISTRY_CHANGED)])
    rows = rows.filter(pc.and_(pc.is_null(rows["replayed_batch"]), pc.is_in(rows["reason"], reasons)))
    rows_by_id: Counter[SchemaId] = Counter()
    counted = rows.group_by(of_ids).aggregate([([], "count_all")])
    for number, *row in zip(*(counted[name].to_pylist() for name in ("count_all", *of_ids)), strict=True):
        schema_id = id_of_row(*row, registries=registry_names(pipeline.settings))
        if schema_id is not None:
            rows_by_id[schema_id] += number
    return {schema_id for schema_id, _ in rows_by_id.most_common(VERSIONS)}


def _counts(values: pa.ChunkedArray) -> Counter[Any]:
    """Value -> how often it is there."""
    return Counter({entry["values"]: entry["counts"] for entry in pc.value_counts(values.combine_chunks()).to_pylist()})


def columns(pipeline: Pipeline) -> str:
    """Whether the columns of the settings have suitable types."""
    bronze = pipeline.open_bronze()
    if bronze is None:
        return "there is no bronze table yet"
    types = {f.name: f.type for f in pa.schema(bronze.schema())}
    wrong = of_another_kind(pipeline.settings, types)
    return Hint("; ".join(wrong)) if wrong else many(len(types), "column")


def names(pipeline: Pipeline) -> str | tuple[str, Mapping[str, object]]:
    """Whether the entity column names a game in most of bronze's newest rows; and the most frequent names that are none."""
    bronze = pipeline.open_bronze()
    entity = pipeline.settings.entity_column
    if bronze is None or not row_count(bronze):
        return "there is no row yet"
    if not has_decoded_columns(bronze):
        return "there is no record of a selected message type yet"
    columns = pa.schema(bronze.schema()).names
    if entity not in columns:
        return _no_entity_column(columns, entity)
    counted = _newest_values(pipeline, bronze, entity)
    rows = counted.total()
    unrouted = Counter({name: count for name, count in counted.items() if not is_game(name)})
    legal = rows - unrouted.total()
    text = f"{legal:,} of the newest {many(rows, 'row')} have a legal name in {entity}"
    if not unrouted:
        return text
    most = [{"name": repr(name)[:NAME_CHARS], "rows": count} for name, count in unrouted.most_common()]
    shown = first_few([f"{entry['name']} {entry['rows']:,}" for entry in most], NAMED, ", ")
    text = f"{text}, the others are in no table of silver: it holds {shown}"
    data = {"rows": rows, "unrouted_rows": unrouted.total(), "unrouted": most[:NAMED]}
    return Hint(text) if legal < unrouted.total() else text, data


def _no_entity_column(columns: Collection[str], entity: str) -> Hint:
    others = some_columns([name for name in columns if not name.startswith("_")], entity)
    return Hint(f"set GAME_EVENTS_ENTITY_COLUMN: bronze has no column {entity!r}. It has {others}")


def _newest_values(pipeline: Pipeline, bronze: DeltaTable, column: str) -> Counter[object]:
    """Values of a column in bronze's newest files, at least `NEWEST_ROWS` if there are as many -> rows."""
    files = sorted(selection(bronze).data, key=lambda file: file.highest_batch or 0, reverse=True)
    schema = pa.schema([pa.schema(bronze.schema()).field(column)])
    counted = Counter[object]()
    for part in read_parts(pipeline.bronze, schema, [file.plain_path for file in files]):
        counted += _counts(part[column])
        if counted.total() >= NEWEST_ROWS:
            break
    return counted


def statistics(pipeline: Pipeline) -> str:
    """Whether files have statistics by which readers miss rows: of earlier releases, until maintenance has renewed them."""
    outdated, others = outdated_tables(pipeline, MOST_TABLES)
    left = f"; {many(others, 'table')} not looked at" if others else ""
    if not outdated:
        return f"readers that skip files find all rows{left}"
    names = first_few([f"{name} ({many(files, 'file')})" for name, files in outdated.items()], NAMED, ", ")
    return Hint(
        f"{names} of an earlier release or another engine: filters of other readers may miss rows with NaN, -0.0 or "
        f"characters from U+20000 on{left}; `game-events maintain` renews them (docs/reading.md)"
    )


def layout(pipeline: Pipeline) -> str:
    """Whether `LAYOUT` and `STATISTICS_COLUMNS` fit the columns; a hint where files are not so yet."""
    said = require_columns(pipeline)
    spread, others = spread_tables(pipeline, MOST_TABLES)
    left = f"; {many(others, 'table')} not looked at" if others else ""
    if not spread:
        return f"{said}{left}"
    names = first_few([f"{name} ({many(files, 'file')})" for name, files in spread.items()], NAMED, ", ")
    return Hint(f"{said}; not yet: {names}{left}; `game-events maintain --layout` changes all files (docs/maintenance.md)")


def rows_by_age(pipeline: Pipeline) -> str:
    """The limits of `RETENTION_DAYS` and the oldest rows; a hint where other settings do not fit them."""
    days = pipeline.settings.row_retention
    if days is None:
        return "no row is removed by age"
    notices = list(misfits(pipeline, days))
    text = told(pipeline, days)
    return Hint("; ".join([text, *notices])) if notices else text


def check_rules(pipeline: Pipeline) -> str:
    """Analyze each rule against the columns of its layer; without rows, parse it.

    Raises:
        ConfigurationError: names each rule that cannot be evaluated, with the problem.
    """
    if not pipeline.rules:
        return "no rules"
    silver = _silver_columns(pipeline)
    gold = _gold_columns(pipeline, silver) if silver is not None else None
    problems_by_rule: dict[str, str] = {}
    for layer, columns in (("silver", silver), ("gold", gold)):
        problems_by_rule |= problems(pipeline.spark, [r for r in pipeline.rules if r.layer == layer], columns)
    refuse(problems_by_rule, silver.names if silver is not None else [])
    against = f"they fit the columns of {pipeline.bronze.name}" if silver is not None else "they parse (there are no rows yet)"
    return f"{len(pipeline.rules)} rules: {against}"


def check_duplicates(pipeline: Pipeline) -> str:
    """What is left out of silver as it was sent twice.

    Raises:
        ConfigurationError: the columns of an entry cannot tell events from each other.
    """
    told = "; ".join(map(str, pipeline.settings.deduplicate))
    bronze = pipeline.open_bronze()
    if bronze is None or not row_count(bronze) or not has_decoded_columns(bronze):
        return f"{told}; not compared with bronze's columns: there are no rows yet"
    _, notices = SilverInput.of(pipeline, bronze).deduplication
    return Hint("; ".join([told, *notices])) if notices else told


def check_gold_columns(pipeline: Pipeline) -> str:
    """Analyze the expressions of the setting `gold_columns` against silver's columns.

    Raises:
        ConfigurationError: one does not fit them.
    """
    count = len(pipeline.settings.gold_columns)
    silver = _silver_columns(pipeline)
    if silver is None:
        return f"{count} columns; not compared with silver's: there are no rows yet"
    player_agg_columns(pipeline.spark, pipeline.settings, silver)
    way = "merged with the old" if measures(pipeline.settings.gold_columns) else "recomputed where rows are new"
    return f"{count} columns fit those of silver; {way}"


def sql_checks(pipeline: Pipeline) -> dict[str, Callable[[], str]]:
    """Checks of the SQL and the columns in the settings; Spark starts only if there is any SQL."""
    checks: dict[str, Callable[[], str]] = {"rules": partial(check_rules, pipeline)}
    checks |= {"definitions": partial(_definitions, pipeline)} if pipeline.definitions is not None else {}
    checks |= {"duplicates": partial(check_duplicates, pipeline)} if pipeline.settings.deduplicate else {}
    return checks | ({"gold columns": partial(check_gold_columns, pipeline)} if pipeline.settings.gold_columns else {})


def _definitions(pipeline: Pipeline) -> str:
    """What `check_definitions` says; raises as it does."""
    is_well, text = check_definitions(pipeline)
    return text if is_well else Hint(text)


def _silver_columns(pipeline: Pipeline) -> StructType | None:
    """The columns of silver's rows; None: there are no rows yet."""
    bronze = pipeline.open_bronze()
    if bronze is None or not row_count(bronze) or not has_decoded_columns(bronze):
        return None
    return SilverInput.of(pipeline, bronze).columns


def _gold_columns(pipeline: Pipeline, silver: StructType) -> StructType | None:
    settings = pipeline.settings
    if not {settings.key_column, *(() if settings.gold_columns else (settings.time_column,))} <= set(silver.names):
        return None  # an error of gold itself
    return player_agg_columns(pipeline.spark, settings, silver)
