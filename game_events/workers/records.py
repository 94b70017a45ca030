"""Decodes whole records of topics, with frames or without, by the rules of the settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from game_events.decoding import frame as frames
from game_events.decoding.columns import field_key
from game_events.decoding.decoder import BatchDecoder, DecodedBatch, GoodRows, Rejected, by_names
from game_events.decoding.frame import BadFrames, FrameGroup, Mask, Reason, Rows, SchemaId
from game_events.decoding.unframed import cloudevents
from game_events.decoding.unframed.inferred import is_legal_type, merged_texts, topic_of
from game_events.decoding.unframed.topics import (
    SETTING,
    BareRows,
    Records,
    TopicPlan,
    TopicRule,
    by_topic,
    split,
    without_rule,
)

AnyFrames = TypeVar("AnyFrames", FrameGroup, BadFrames)


class RecordDecoder(BatchDecoder):
    """Decodes records with one plan; without rules for topics exactly as `BatchDecoder`."""

    def decode_records(self, records: Records) -> DecodedBatch:
        """As `decode`. Rows of types, of names of schemas and with members that the plan lacks: the driver plans again."""
        plan = self._plan.topics
        # Stored rows may be of topics that had a rule once.
        if plan is None or not (plan.rules.all or records.stored is not None):
            return self.decode(records.values, records.headers, records.registry)
        result = DecodedBatch()
        has_frame = np.ones(len(records.values), dtype=bool)
        for topic, rule, rows in by_topic(plan.rules, records):
            bare = rows[self._is_bare(rule, rows, records)]
            has_frame[bare] = False
            self._decode_bare(split(plan, topic, rule, bare, records), result)
        rest = np.flatnonzero(has_frame)
        if len(rest):
            self._decode_others(plan, records, rest, result)
        return self._settled(result)

    def _is_bare(self, rule: TopicRule, rows: Rows, records: Records) -> Mask:
        """Which of some rows have no frame: those without the header that is one; all of them, unless the topic has both kinds.

        A payload of protobuf and a text of JSON begin neither with 00 nor with 01. One of Avro may: there a frame's id must be
        one that the registry knows.
        """
        is_bare = np.ones(len(records.values), dtype=bool)
        if records.headers is not None and len(records.headers.flatten()):
            names = records.headers.flatten().field("key")
            mine = np.asarray(pc.fill_null(pc.equal(names, frames.ID_HEADER), False))
            is_bare[pc.list_parent_indices(records.headers).to_numpy()[mine]] = False
        if rule.framed == "auto":
            headers = None if records.headers is None else records.headers.take(pa.array(rows))
            groups, bad = frames.split(records.values.take(pa.array(rows)), headers, self._indexless_of(records.registry))
            framed = [(item.schema_id, item.rows) for item in groups]
            framed += [(item.schema_id, item.rows) for item in bad if item.schema_id is not None]
            for schema_id, mine in framed:
                if rule.format != "AVRO" or self._may_exist(frames.named(records.registry, schema_id)):
                    is_bare[rows[mine]] = False
        chosen: Mask = is_bare[rows]
        return chosen

    def _may_exist(self, schema_id: SchemaId) -> bool:
        """Whether the registry knows an id, or has not been asked yet."""
        refusal = self._plan.rejected.get((schema_id, ()))
        if refusal is not None:
            return refusal[0] != Reason.UNKNOWN_SCHEMA
        return schema_id in self._plan.schemas or self._plan.rest is None

    def _decode_others(self, plan: TopicPlan, records: Records, rows: Rows, result: DecodedBatch) -> None:
        """Decode rows by their frames; stored ones that have none by the schemas that they were decoded with."""
        is_all = len(rows) == len(records.values)
        chosen = pa.array(rows)
        values = records.values if is_all else records.values.take(chosen)
        headers = records.headers if is_all or records.headers is None else records.headers.take(chosen)
        part = DecodedBatch()
        groups, bad = frames.split(values, headers, self._indexless_of(records.registry))
        if records.stored is not None:
            stored = _StoredIds([column.take(chosen) for column in records.stored[:2]], values)
            groups, of_groups = stored.split(groups)
            bad, of_bad = stored.split(bad)
            self._decode_stored(plan, records, rows[np.sort(np.concatenate([*of_groups, *of_bad]))], result)
        self._decode_split(groups, bad, values, records.registry, part)
        _add(part, result, None if is_all else rows)

    def _decode_stored(self, plan: TopicPlan, records: Records, unframed: Rows, result: DecodedBatch) -> None:
        for name, rows in without_rule(records, unframed):
            rule = TopicRule("record", name.schema, name.message_type)
            self._decode_bare(split(plan, "", rule, rows, records), result)

    def _decode_bare(self, bare: BareRows, result: DecodedBatch) -> None:
        """Decode rows without a frame; the detail of those that do not decode says what was tried."""
        result.unknown_names |= bare.unknown
        for bad, tried in bare.bad:
            result.rejected.append(_tried(Rejected(bad.reason, bad.detail or bad.reason.explanation, bad.rows, None), tried))
        for group, payloads, tried, attributes in bare.groups:
            part = DecodedBatch()
            for known in self._known([group], part):
                self._decode(known, payloads, part)
            part.rejected = [_tried(item, tried) for item in part.rejected]
            if attributes is not None:
                self._add_attributes(group, attributes, part)
            _add(part, result, None)

    def _add_attributes(self, group: FrameGroup, attributes: pa.RecordBatch, part: DecodedBatch) -> None:
        """Give rows of CloudEvents the columns of attributes; where nothing else says their type, the one that they say."""
        key = (cloudevents.TYPE_ID, ())
        if key not in self._plan.types:
            part.unknown.add(key)
            return
        part.types.add(key)
        names = self._plan.columns.names
        columns = {str(f.id): names[field_key(cloudevents.TYPE_ID, (f.id,), f.kind)] for f in cloudevents.FIELDS}
        types = [name if name is not None and is_legal_type(name) else None for name in attributes.column("type").to_pylist()]
        topic = topic_of(group.schema_id)
        order = np.argsort(group.rows)
        good: list[GoodRows] = []
        for rows in part.good:
            places = pa.array(order[np.searchsorted(group.rows, rows.rows, sorter=order)])
            table = rows.columns
            for name, column in columns.items():
                values = attributes.column(name).take(places)
                at = table.schema.get_field_index(column)
                table = table.append_column(column, values) if at < 0 else table.set_column(at, column, values)
            with_columns = rows._replace(columns=table)
            untyped = topic is not None and rows.message_type == topic
            good += by_names(with_columns, pa.array(types, pa.string()).take(places)) if untyped else [with_columns]
        part.good = good


class _StoredIds:
    """Ids and GUIDs of the schemas that stored rows were decoded with."""

    def __init__(self, columns: Sequence[pa.Array], values: pa.BinaryArray) -> None:
        """`columns`: ids and GUIDs; `values`: NULL if there is nothing to decode."""
        encoded = columns[1].dictionary_encode()
        self._ids = pc.fill_null(columns[0], -1).to_numpy()
        self._guids = pc.fill_null(encoded.indices, -1).to_numpy()
        self._numbers = {guid: number for number, guid in enumerate(encoded.dictionary.to_pylist())}
        has_one = (self._ids >= 0) | (self._guids >= 0)
        self._is_any = ~has_one | values.is_null().to_numpy(zero_copy_only=False)

    def split(self, parts: Iterable[AnyFrames]) -> tuple[list[AnyFrames], list[Rows]]:
        """Rows that have the frame of their schema, or are of none; the others: what begins their payloads is no frame."""
        framed = []
        others: list[Rows] = [frames.NO_ROWS]
        for part in parts:
            mine = self._is_any[part.rows] | self._has(part.schema_id, part.rows)
            others.append(part.rows[~mine])
            if mine.any():
                framed.append(part if mine.all() else replace(part, rows=part.rows[mine]))
        return framed, others

    def _has(self, schema_id: SchemaId | None, rows: Rows) -> Mask:
        is_guid = isinstance(schema_id, str)
        wanted = self._numbers.get(schema_id) if is_guid else schema_id
        chosen: Mask = (self._guids if is_guid else self._ids)[rows] == (-2 if wanted is None else wanted)
        return chosen


def _tried(rejected: Rejected, tried: str) -> Rejected:
    """A record without a frame, with what was tried."""
    if not tried:
        return rejected
    return replace(rejected, detail=f"{rejected.detail} (read without a frame, by {SETTING}: {tried})")


def _add(part: DecodedBatch, result: DecodedBatch, rows: Rows | None) -> None:
    """Add what was decoded of some rows of a batch; None: of all."""
    result.types |= part.types
    result.unknown |= part.unknown
    result.nulled.update(part.nulled)
    result.rescued.update(part.rescued)
    for topic, grown in part.grown.items():
        result.grown[topic] = merged_texts(result.grown[topic], grown) if topic in result.grown else grown
    for good in part.good:
        result.good.append(good if rows is None else good._replace(rows=rows[good.rows]))
    for rejected in part.rejected:
        result.rejected.append(rejected if rows is None else replace(rejected, rows=rows[rejected.rows]))
    result.undecoded += [(at if rows is None else rows[at], key) for at, key in part.undecoded]
