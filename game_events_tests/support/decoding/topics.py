"""Records of topics without frames, decoded as the driver and a worker do it together, without Spark."""

import pyarrow as pa

from game_events.config.definitions.settings import definitions_of
from game_events.config.settings import load_settings
from game_events.decoding.columns import ColumnMap, kept_columns
from game_events.decoding.unframed.topics import Records, TopicRules
from game_events.lakehouse.data.columns import OWN_COLUMNS
from game_events.lakehouse.tables import Lakehouse
from game_events.pipeline.schemas.catalog import SchemaCatalog
from game_events.schema_registry import SchemaLookup
from game_events.workers.records import RecordDecoder
from game_events.workers.results import StagedRows

HEADERS = OWN_COLUMNS.field("_kafka_headers").type


class Registry(SchemaLookup):
    """Knows schemas by id, and subjects: name -> ids of the versions."""

    url = "http://registry"

    def __init__(self, schemas=(), subjects=None):
        self.schemas = {schema.schema_id: schema for schema in schemas}
        self.subjects = subjects or {}
        self.asked = []

    def fetch(self, schema_id):
        self.asked.append(schema_id)
        return self.schemas.get(schema_id)

    def version_numbers(self, subject):
        return list(range(1, 1 + len(self.subjects.get(subject, ()))))

    def id_of(self, subject, version=None):
        self.asked.append((subject, version))
        ids = self.subjects.get(subject, [])
        return None if not ids or (version or 0) > len(ids) else ids[(version or len(ids)) - 1]


def catalog_of(folder, registry=None, **settings):
    """A catalog with the rules of settings."""
    chosen = load_settings(lakehouse=str(folder), **settings)
    about_columns = {"kept": kept_columns(chosen), "definitions": definitions_of(chosen), "max_columns": chosen.max_columns}
    catalog = SchemaCatalog(registry or Registry(), Lakehouse(str(folder)), **about_columns, max_unknown_ids=50)
    catalog.use_rules(TopicRules.of_settings(chosen))
    return catalog


def records(values, topic="events", headers=None, keys=None, stored=None):
    """Records of one topic, or of a topic for each."""
    topics = [topic] * len(values) if isinstance(topic, str) else topic
    made = None if headers is None else pa.array([[{"key": k, "value": v} for k, v in h] for h in headers], HEADERS)
    keys = pa.array(keys if keys is not None else [None] * len(values), pa.binary())
    return Records(pa.array(values, pa.binary()), made, pa.array(topics, pa.string()), keys, stored)


def decoded(catalog, sent, columns=None, planned=()):
    """The decoded batch, bronze's columns afterwards, and how often it was decoded; `planned`: types to begin with."""
    columns = columns or ColumnMap()
    planned = set(planned)
    rest = None
    room = catalog.max_unknown_ids
    for attempt in range(1, 12):
        plan = catalog.plan(columns, planned, rest)
        batch = RecordDecoder(plan).decode_records(sent)
        staged = StagedRows()
        staged.note(batch)
        if staged.is_planned:
            return batch, catalog.message_columns(columns, batch.types), attempt
        catalog.grow(staged.grown)
        asked, missed = catalog.look_up(staged.unknown, room)
        room -= missed + catalog.look_up_names(staged.unknown_names, room)
        rest = "too many" if room <= 0 else rest
        planned |= asked | staged.types
    raise AssertionError("the driver plans again for ever")


def rows_of(batch):
    """Position -> (message type, row without NULLs)."""
    return {
        int(position): (name, {key: value for key, value in row.items() if value is not None})
        for rows, _, table, name in batch.good
        for position, row in zip(rows, table.to_pylist(), strict=True)
    }


def reasons_of(batch):
    """Position -> (reason, detail)."""
    return {int(position): (item.reason, item.detail) for item in batch.rejected for position in item.rows}
