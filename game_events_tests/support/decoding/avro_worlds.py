"""Generated Avro schemas, and values of them."""

from datetime import UTC, date, datetime

from hypothesis import strategies as st

from game_events.decoding.columns import TIMESTAMP_RANGE

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
LOGICAL = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
    "uuid": "string",
}
PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)


class Branch(tuple):
    """A union's value with the index of its branch."""


class Schemas:
    """Draws schemas; every named type gets a name of its own."""

    def __init__(self, draw):
        self.draw, self.named = draw, {}

    def name(self, letter):
        return f"{letter}{len(self.named)}"

    def any(self, depth, above=(), in_union=False):
        kinds = ["primitive"] * 4 + ["logical", "decimal", "fixed", "enum"]
        kinds += ["array", "map", "record"] if depth else []
        kinds += ["union", "union"] if depth and not in_union else []
        kinds += ["recursive"] if above and in_union else []
        return getattr(self, self.draw(st.sampled_from(kinds)))(depth, above)

    def primitive(self, *_):
        return self.draw(st.sampled_from(PRIMITIVES))

    def logical(self, *_):
        name = self.draw(st.sampled_from([*LOGICAL, "duration", "uuid16", "unheard-of"]))
        if name in ("duration", "uuid16"):
            made = {"type": "fixed", "name": self.name("F"), "size": 12 if name == "duration" else 16}
            self.named[made["name"]] = made
            return made | {"logicalType": name[:8].removesuffix("16")}
        return {"type": LOGICAL.get(name, "long"), "logicalType": name}

    def decimal(self, *_):
        precision = self.draw(st.integers(1, 45))
        scale = self.draw(st.integers(0, precision))
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}

    def fixed(self, *_):
        made = {"type": "fixed", "name": self.name("F"), "size": self.draw(st.integers(0, 5))}
        self.named[made["name"]] = made
        return made

    def enum(self, *_):
        made = {"type": "enum", "name": self.name("E"), "symbols": ["A", "B", "C"][: self.draw(st.integers(1, 3))]}
        self.named[made["name"]] = made
        return made

    def array(self, depth, above):
        return {"type": "array", "items": self.any(depth - 1, above)}

    def map(self, depth, above):
        return {"type": "map", "values": self.any(depth - 1, above)}

    def record(self, depth, above, least=0):
        made = {"type": "record", "name": self.name("R"), "namespace": "g.n", "fields": []}
        self.named["g.n." + made["name"]] = made
        inside = (*above, "g.n." + made["name"])
        for number in range(self.draw(st.integers(least, 4))):
            made["fields"].append({"name": f"f{number}", "type": self.any(depth - 1, inside)})
        return made

    def recursive(self, _, above):
        return self.draw(st.sampled_from(above))

    def union(self, depth, above):
        branches = {}
        for _ in range(self.draw(st.integers(1, 4))):
            item = self.any(depth - 1, above, in_union=True)
            branches.setdefault(type_name(item), item)
        if len(branches) == 1 and self.draw(st.booleans()):
            branches.setdefault("null", "null")
        # A value must be able to end.
        if any(isinstance(b, str) and b in above for b in branches.values()):
            branches.setdefault("null", "null")
        return list(branches.values())


def type_name(item):
    if isinstance(item, str):
        return item
    kind = item["type"]
    return full_name(item) if kind in ("record", "enum", "fixed") else kind


def full_name(item):
    # Everything stands below a record in g.n, whose namespace a named type without one inherits.
    return "g.n." + item["name"]


def without_logical(item):
    """The schema as bytes alone need it: what the other implementations read and write."""
    if isinstance(item, dict):
        return {k: without_logical(v) for k, v in item.items() if k not in ("logicalType", "precision", "scale")}
    return [without_logical(v) for v in item] if isinstance(item, list) else item


def resolved(item, named):
    return named.get(item, item) if isinstance(item, str) else item


def values(item, named, depth=3):  # noqa: PLR0911 - one for each type
    """Values of a schema, unions as Branch."""
    item = resolved(item, named)
    if isinstance(item, list):
        simple = [i for i, b in enumerate(item) if not (isinstance(b, str) and b in named)]
        usable = range(len(item)) if depth > 0 else simple
        return st.sampled_from(list(usable)).flatmap(lambda i: values(item[i], named, depth - 1).map(lambda v: Branch((i, v))))
    kind = item if isinstance(item, str) else item["type"]
    logical = item.get("logicalType") if isinstance(item, dict) else None
    if kind == "record":
        return st.fixed_dictionaries({f["name"]: values(f["type"], named, depth - 1) for f in item["fields"]})
    if kind == "array":
        return st.lists(values(item["items"], named, depth - 1), max_size=3)
    if kind == "map":
        return st.dictionaries(TEXT, values(item["values"], named, depth - 1), max_size=3)
    if logical == "decimal":
        limit = 10 ** item["precision"] - 1
        return st.integers(-limit, limit).map(lambda n: n.to_bytes(n.bit_length() // 8 + 1, "big", signed=True))
    if logical == "date":
        return st.dates().map(lambda d: (d - date(1970, 1, 1)).days)
    if logical in ("time-millis", "time-micros"):
        return st.integers(0, 86_400 * PER_SECOND[logical[5:]] - 1)
    if logical and "timestamp" in logical:
        per = PER_SECOND[logical.rpartition("-")[2]]
        low, high = (bound // 10**6 * per for bound in TIMESTAMP_RANGE)
        return st.integers(max(low, -(2**63)), min(high, 2**63 - 1))
    if logical == "uuid" and kind == "string":
        return st.uuids().map(str)
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32),
        "double": st.floats(),
        "bytes": st.binary(max_size=5),
        "string": TEXT,
        "fixed": st.binary(min_size=item["size"], max_size=item["size"]) if kind == "fixed" else None,
        "enum": st.sampled_from(item["symbols"]) if kind == "enum" else None,
    }[kind]


@st.composite
def cases(draw):
    """A schema, its named types, and values."""
    schemas = Schemas(draw)
    schema = schemas.record(3, (), least=1)
    named = {n if n.startswith("g.n.") else f"g.n.{n}": s for n, s in schemas.named.items()}
    return schema, named, draw(st.lists(values(schema, named, 6), min_size=1, max_size=5))
