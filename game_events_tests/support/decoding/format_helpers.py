"""What the tests of Avro and JSON share: plans for schemas of any format, frames, damage."""

import json

from game_events.decoding.columns import ColumnMap
from game_events.decoding.decoder import DecodePlan, compile_schema, make_decoder
from game_events.decoding.frame import RegistrySchema
from game_events_tests.support.decoding.helpers import decode, rows_by_position


def registered(kind, text, schema_id=1, references=()):
    """A schema as the registry client gives it; text and references as Python objects or as text."""
    refs = tuple((name, ref if isinstance(ref, str) else json.dumps(ref)) for name, ref in references)
    return RegistrySchema(schema_id, kind, text if isinstance(text, str) else json.dumps(text), refs)


def plan_of(*schemas, columns=None):
    """A plan for registry schemas of any format; of protobuf the first message."""
    columns, compiled, types = columns or ColumnMap(), {}, set()
    for schema in schemas:
        made = compiled[schema.schema_id] = compile_schema(schema)
        path = (0,) if made.indexed else ()
        decoder = make_decoder(made, path)
        columns = columns.with_message(decoder.message, decoder.fields)
        types.add((schema.schema_id, path))
    return DecodePlan(compiled, frozenset(types), {}, columns)


def framed(payload, schema_id=1):
    """Magic byte, id, payload."""
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def decode_one(kind, text, payload, references=()):
    """The decoded row of a single payload."""
    decoded = decode(plan_of(registered(kind, text, references=references)), [framed(payload)])
    assert not decoded.rejected, decoded.rejected
    return rows_by_position(decoded)[0]


def rejection(kind, text, payload):
    """Reason and detail of a single payload between two that are decoded by another schema: it costs only itself."""
    other = registered("AVRO", '"string"', 99)
    plan = plan_of(registered(kind, text), other)
    good = framed(b"\x02x", 99)
    decoded = decode(plan, [good, framed(payload), good])
    assert set(rows_by_position(decoded)) == {0, 2}
    (rejected,) = decoded.rejected
    assert rejected.rows.tolist() == [1]
    return rejected.reason, rejected.detail


def same_schema_rejections(kind, text, good, bad):
    """Reasons of payloads that stand between good ones of the same schema; every good one is decoded, equal to the first."""
    values = [framed(good)]
    for payload in bad:
        values += [framed(payload), framed(good)]
    decoded = decode(plan_of(registered(kind, text)), values)
    rows = rows_by_position(decoded)
    assert set(rows) == set(range(0, len(values), 2))
    assert all(row == rows[0] for row in rows.values())
    return {int(p): r.reason for r in decoded.rejected for p in r.rows}
