"""The sensor `schema_versions`: a new version of a subject becomes an event of its asset, with what it changed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from game_events.config.settings import Settings
from game_events.decoding.columns import kept_columns
from game_events.decoding.frame import SchemaId
from game_events.errors import DataError, GameEventsError, TransientError
from game_events.lakehouse.tables import Lakehouse
from game_events.orchestration.events import NAMED, as_text, one_line, some, table
from game_events.orchestration.keys import schema_key
from game_events.orchestration.resources import Graph
from game_events.orchestration.runs import REASON, unused_run_key
from game_events.orchestration.sensors import REFRESH, TIMEOUT_S, Clock, Sensor, Tick
from game_events.pipeline.runs.pending import digest
from game_events.plugins.catalog.schema_history import CHANGE_COLUMNS, SchemaHistory, as_line, as_rows, registry_of
from game_events.schema_registry import SchemaLimits, SchemaLookup, SubjectVersion
from game_events.sources.factory import subjects

#: Versions with their changes in one event: a tick has to stay short.
MAX_DIFFS = 10
#: Seconds after which a tick begins with no further subject, and for the versions of one: Dagster ends a tick after 60 s, and
#: its cursor is lost then.
SEARCH_S = 20.0
#: Subject -> version number -> schema id.
Cursor = dict[str, dict[int, SchemaId]]


def read_cursor(cursor: str | None) -> Cursor:
    """What was seen, those that waited longest first; nothing, if it is no cursor."""
    try:
        return TypeAdapter(Cursor).validate_json(cursor or "{}")
    except ValidationError:
        return {}


class Difference(NamedTuple):
    """What a version changed against the one before it: in one line, as rows of a table, and what these leave out."""

    line: str
    rows: Sequence[Mapping[str, str]] = ()
    left_out: str = ""

    def metadata(self, number: int) -> dict[str, dg.MetadataValue[Any]]:
        """Metadata of the version with that number."""
        name = f"changes_in_version_{number}"
        if not self.rows:
            return {name: dg.MetadataValue.text(one_line(self.line))}
        values: dict[str, dg.MetadataValue[Any]] = {name: table(CHANGE_COLUMNS, self.rows)}
        return values | ({f"left_out_of_version_{number}": dg.MetadataValue.text(self.left_out)} if self.left_out else {})


def changes_by_version(
    history: SchemaHistory, versions: list[SubjectVersion], new: list[SubjectVersion]
) -> dict[int, Difference]:
    """Version -> what it changed; of a flood of versions the newest."""
    texts = {}
    before = {later.version: earlier for earlier, later in pairwise(versions)}
    for version in new[-MAX_DIFFS:]:
        if version.version in before:
            try:
                compared = before[version.version], version
                changes = history.changes(*compared)
                texts[version.version] = Difference(as_line(changes), as_rows(changes), history.left_out(*compared))
            except DataError as error:
                texts[version.version] = Difference(f"not comparable: {error}")
    return texts


@dataclass
class NewVersions:
    """What one tick has found: new versions of subjects, their events, errors."""

    found: list[list[SubjectVersion]] = field(default_factory=list)
    events: list[dg.AssetMaterialization] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def search(self, settings: Settings, names: Sequence[str], seen: Cursor, clock: Clock) -> Cursor:
        """Search the subjects that waited longest for new versions, for `SEARCH_S` seconds; returns the next cursor.

        One that cannot be read waits as long as the others. An outage ends the search: the registry is left in peace then.
        """
        registry = registry_of(settings, SchemaLimits(schema_s=SEARCH_S))
        until = clock() + SEARCH_S
        waiting = _queue(names, seen)
        for subject, known in list(waiting.items()):
            if clock() > until:
                break
            # To the end of the queue, whatever becomes of it.
            del waiting[subject]
            waiting[subject] = known
            try:
                if registry.newest(subject) != max(known.items(), default=None):
                    versions = registry.versions(subject)
                    self._note(settings, registry, versions, known)
                    waiting[subject] = {v.version: v.schema_id for v in versions} or known
            except GameEventsError as error:
                self.errors.append(str(error))
                if isinstance(error, TransientError):
                    break
        return waiting

    def _note(
        self, settings: Settings, registry: SchemaLookup, versions: list[SubjectVersion], known: Mapping[int, SchemaId]
    ) -> None:
        # A number with another schema (a recreated registry) is new.
        new = [v for v in versions if known.get(v.version) != v.schema_id]
        if new:
            history = SchemaHistory(registry, Lakehouse.of(settings), new[0].subject, kept_columns(settings))
            changes = changes_by_version(history, versions, new)
            self.events.append(_version_event(schema_key(settings, new[0].subject), new, changes, registry.url))
            self.found.append(new)


def _queue(names: Sequence[str], seen: Cursor) -> Cursor:
    """The subjects' known versions: of new subjects first, then of those that waited longest."""
    waiting: Cursor = {name: {} for name in names if name not in seen}
    wanted = set(names)
    return waiting | {name: versions for name, versions in seen.items() if name in wanted}


def report_versions(tick: Tick) -> dg.SensorResult | dg.SkipReason:
    """A tick of the sensor `schema_versions`: it asks the registry once for each subject."""
    new = NewVersions()
    names = subjects(tick.settings, TIMEOUT_S)
    seen = new.search(tick.settings, names, read_cursor(tick.context.cursor), tick.clock)
    cursor = json.dumps(seen)
    if not new.events:
        tick.context.update_cursor(cursor)
        known = some(f"subject {s} still has {len(seen[s])} versions" for s in names)
        return dg.SkipReason("; ".join([*new.errors[:NAMED], f"no new version: {known}"]))
    key = digest([[v[-1].subject, v[-1].version, *(one.schema_id for one in v)] for v in new.found])
    texts = ", ".join(f"{v[-1].subject} version {v[-1].version}" for v in new.found)
    request = dg.RunRequest(unused_run_key(tick.context.instance, f"schemas-{key}"), tags={REASON: f"schema: {texts}"[:200]})
    return dg.SensorResult(asset_events=new.events, run_requests=[request], cursor=cursor)


def _version_event(
    key: dg.AssetKey, new: list[SubjectVersion], changes: Mapping[int, Difference], registry: str
) -> dg.AssetMaterialization:
    newest = new[-1]
    metadata: dict[str, Any] = {
        "subject": newest.subject,
        "versions": [v.version for v in new],
        "schema_ids": [v.schema_id for v in new],
        "registry": registry,
    }
    for number, difference in changes.items():
        metadata |= difference.metadata(number)
    said = as_text("; ".join(f"version {number}: {difference.line}" for number, difference in changes.items()))
    return dg.AssetMaterialization(
        key, description=said or None, metadata=metadata, tags={"dagster/data_version": f"{newest.version}-{newest.schema_id}"}
    )


SENSOR = Sensor(
    "schema_versions",
    30,
    report_versions,
    "A new version of a topic's subject becomes an event of its asset, and starts the job `refresh`.",
    job=REFRESH,
)


def build_schema_versions(graph: Graph) -> dg.Definitions:
    """The sensor."""
    return dg.Definitions(sensors=[SENSOR.build(graph)])
