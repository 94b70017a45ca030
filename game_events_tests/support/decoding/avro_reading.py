"""What the Apache `avro` package reads, as our columns have it."""

import json
import math
from datetime import date, timedelta
from decimal import Decimal

import avro.io
import avro.schema

from game_events_tests.support.decoding.avro_worlds import EPOCH, PER_SECOND, Branch, resolved, type_name


class Reader(avro.io.DatumReader):
    """Apache's reader, which says which branch it took."""

    def read_union(self, writers_schema, _, decoder):
        index = int(decoder.read_long())
        chosen = writers_schema.schemas[index]
        return Branch((index, self.read_data(chosen, chosen, decoder)))


class Writer(avro.io.DatumWriter):
    """Apache's writer, which is told which branch to take."""

    def write_union(self, writers_schema, datum, encoder):
        encoder.write_long(datum[0])
        self.write_data(writers_schema.schemas[datum[0]], datum[1], encoder)


def plain(value):
    """Without branches: fastavro chooses its own."""
    if isinstance(value, Branch):
        return plain(value[1])
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def expected(item, value, named, above=()):  # noqa: PLR0911 - one for each type
    """What our column holds, from what Apache's reader read."""
    if isinstance(item, str) and item in above:
        return json.loads(json.dumps(as_text(item, value, named)))
    name, item = item, resolved(item, named)
    if isinstance(item, list):
        index, inner = value
        branches = [b for b in item if b != "null"]
        got = expected(item[index], inner, named, above)
        if len(branches) < 2:
            return got
        if item[index] == "null":
            return None
        struct = {type_name(resolved(b, named)).rpartition(".")[2]: None for b in branches}
        return struct | {type_name(resolved(item[index], named)).rpartition(".")[2]: got}
    if isinstance(item, str):
        return value
    kind, logical = item["type"], item.get("logicalType")
    if kind == "record":
        me = name if isinstance(name, str) else "g.n." + item["name"]
        inside = (*above, me)
        return {f["name"]: expected(f["type"], value[f["name"]], named, inside) for f in item["fields"]} or True
    if kind == "array":
        return [expected(item["items"], v, named, above) for v in value]
    if kind == "map":
        return [(k, expected(item["values"], v, named, above)) for k, v in value.items()]
    return of_logical(logical, item, value)


def of_logical(logical, item, value):  # noqa: PLR0911 - one for each type
    if logical == "decimal":
        exact = Decimal((0, (), 0)) if not value else Decimal(int.from_bytes(value, "big", signed=True))
        digits = exact.as_tuple()
        exact = Decimal((digits.sign, digits.digits, -item["scale"]))
        return exact if item["precision"] <= 38 else f"{exact:f}"
    if logical == "date":
        return date(1970, 1, 1) + timedelta(days=value)
    if logical in ("time-millis", "time-micros"):
        return value * 10**6 // PER_SECOND[logical[5:]]
    if logical and "timestamp" in logical:
        at = EPOCH + timedelta(microseconds=value * 10**6 // PER_SECOND[logical.rpartition("-")[2]])
        return at if logical.startswith("timestamp") else at.replace(tzinfo=None).isoformat(timespec="microseconds")
    if logical == "duration":
        numbers = [int.from_bytes(value[i : i + 4], "little") for i in (0, 4, 8)]
        return dict(zip(("months", "days", "milliseconds"), numbers, strict=True))
    if logical == "uuid" and item["type"] == "fixed":
        digits = value.hex()
        return "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])
    return value


def as_text(item, value, named):  # noqa: PLR0911 - one for each type
    """Avro's JSON encoding."""
    item = resolved(item, named)
    if isinstance(item, list):
        index, inner = value
        branch = resolved(item[index], named)
        return None if branch == "null" else {type_name(branch): as_text(branch, inner, named)}
    kind = item if isinstance(item, str) else item["type"]
    if kind == "record":
        return {f["name"]: as_text(f["type"], value[f["name"]], named) for f in item["fields"]}
    if kind == "array":
        return [as_text(item["items"], v, named) for v in value]
    if kind == "map":
        return {k: as_text(item["values"], v, named) for k, v in value.items()}
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def comparable(item, value, named, above=()):  # noqa: PLR0911 - one for each type
    """Our row, JSON text parsed where the schema is recursive."""
    if value is None or (isinstance(item, str) and item in above):
        return value if value is None else json.loads(value)
    name, item = item, resolved(item, named)
    if isinstance(item, list):
        branches = [b for b in item if b != "null"]
        if len(branches) < 2:
            return comparable((branches or item)[0], value, named, above)
        by_name = {type_name(resolved(b, named)).rpartition(".")[2]: b for b in branches}
        return {k: comparable(by_name[k], v, named, above) for k, v in value.items()}
    kind = item if isinstance(item, str) else item["type"]
    if kind == "record" and value is not True:
        inside = (*above, name if isinstance(name, str) else "g.n." + item["name"])
        return {f["name"]: comparable(f["type"], value[f["name"]], named, inside) for f in item["fields"]}
    if kind == "array":
        return [comparable(item["items"], v, named, above) for v in value]
    if kind == "map":
        return [(k, comparable(item["values"], v, named, above)) for k, v in value]
    return value
