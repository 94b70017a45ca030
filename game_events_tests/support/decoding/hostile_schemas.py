"""Schemas that a careless or hostile author registers, of all three formats: each is to harm only its own records."""

import base64
import itertools
import json

from google.protobuf import descriptor_pb2

MAIN = 'syntax = "proto3"; message M { string a = 1; }'
EMPTY = 'syntax = "proto3";'


def described(**more):
    """A file with one message, as a descriptor."""
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3", **more)
    file.message_type.add(name="M").field.add(name="a", number=1, type=9, label=1)
    return file


def as_base64(file):
    """The form in which serializers register it."""
    return base64.b64encode(file.SerializeToString()).decode()


def _changed(change):
    file = described()
    change(file)
    return as_base64(file)


def _unresolved(file):
    file.message_type[0].field[0].MergeFrom(descriptor_pb2.FieldDescriptorProto(type=11, type_name=".nope"))


def avro(fields, name="r"):
    """A record."""
    return json.dumps({"type": "record", "name": name, "fields": fields})


def decimal(**more):
    """A record with a decimal."""
    return avro([{"name": "a", "type": {"type": "bytes", "logicalType": "decimal"} | more}])


def objects(properties, **more):
    """A JSON Schema of an object."""
    return json.dumps({"type": "object", "properties": properties} | more)


def _doubling_all_of(width):
    """Each member refers to a definition of many parts: width * width steps."""
    parts = {"allOf": [{"description": str(n)} for n in range(width)], "type": "string"}
    return objects({f"c{n}": {"$ref": "#/$defs/parts"} for n in range(width)}, **{"$defs": {"parts": parts}})


#: name -> (format, text, references); none of them can be decoded.
BAD = {
    "unresolved type": ("PROTOBUF", _changed(_unresolved), ()),
    "message twice": ("PROTOBUF", _changed(lambda f: f.message_type.add(name="M")), ()),
    "bad name": ("PROTOBUF", _changed(lambda f: setattr(f.message_type[0], "name", "bad name")), ()),
    "number 0": ("PROTOBUF", _changed(lambda f: setattr(f.message_type[0].field[0], "number", 0)), ()),
    "import with half a character": ("PROTOBUF", 'syntax = "proto3"; import "\ud800"; message M {}', (("\ud800", EMPTY),)),
    "messages nested without end": ("PROTOBUF", 'syntax = "proto3";' + "message A {" * 50_000, ()),
    "comment without end": ("PROTOBUF", "/* " * 30_000, ()),
    "map_entry of no map": ("PROTOBUF", "message M { message E { option map_entry = true; string a = 1; } }", ()),
    "arrays without end": ("AVRO", '{"type":"array","items":' * 4_000 + '"string"' + "}" * 4_000, ()),
    "JSON without end": ("AVRO", "[" * 200_000, ()),
    "half a character in a name": ("AVRO", '{"type":"record","name":"r\\ud800","fields":[{"name":"a","type":"string"}]}', ()),
    "half a character in a symbol": (
        "AVRO", avro([{"name": "a", "type": {"type": "enum", "name": "e", "symbols": ["\ud800"]}}]), (),
    ),
    "a long name of an enum's value": (
        "PROTOBUF", f'syntax = "proto3"; message M {{ E e = 1; }} enum E {{ {"X" * 161} = 0; }}', (),
    ),
    "a long symbol": ("AVRO", avro([{"name": "a", "type": {"type": "enum", "name": "e", "symbols": ["X" * 161]}}]), ()),
    "a decimal of 151 digits": ("AVRO", decimal(precision=151), ()),
    "precision": ("AVRO", decimal(precision=2**31 - 1), ()),
    "precision and scale": ("AVRO", decimal(precision=2**31 - 1, scale=2**31 - 1), ()),
    "precision that overflows": ("AVRO", decimal(precision=10**400), ()),
    "a number of 5,000 digits": ("AVRO", decimal(precision=0).replace(": 0", ": " + "9" * 5_000), ()),
    "pointer of 5,000 digits": ("JSON", objects({"x": {"$ref": "#/enum/" + "9" * 5_000}}, enum=[1]), ()),
    "reference that is no address": ("JSON", objects({"x": {"$ref": "http://["}}), ()),
    "$id that is no address": ("JSON", objects({"x": {"$ref": "o"}}, **{"$id": "http://["}), ()),
    "objects without end": ("JSON", '{"properties":{"a":' * 50_000 + "{}" + "}}" * 50_000, ()),
    "steps without end": ("JSON", _doubling_all_of(6_000), ()),
    "more columns than there may be": ("JSON", objects({f"c{n}": {"type": "string"} for n in range(10_001)}), ()),
    "a long title before the name of each column": (
        "JSON", objects({f"c{n}": {"type": "string"} for n in range(1_000)}, title="t" * 5_000), (),
    ),
    "a long name around each column": (
        "JSON", objects({"o" * 5_000: {"type": "object", "properties": {f"c{n}": {} for n in range(1_000)}}}), (),
    ),
    "half a character": ("JSON", '{"type":"object","properties":{"\\ud800":{"type":"string"}}}', ()),
    "no format": ("XML", "<a/>", ()),
}  # fmt: skip

_ALIKE = ["".join(name) for name in itertools.islice(itertools.product(" ,;{}()=.`", repeat=4), 9_000)]
_ANCHORS = 1_500
#: The same for schemas that mean something, whatever they cost a careless reader.
ODD = {
    "imports itself": ("PROTOBUF", 'syntax = "proto3"; import "a"; message M {}', (("a", 'syntax = "proto3"; import "a";'),)),
    "imports in a circle": (
        "PROTOBUF",
        'import "a"; message M {}',
        (("a", 'syntax = "proto3"; import "b";'), ("b", 'syntax = "proto3"; import "a";')),
    ),
    "descriptor imports itself": ("PROTOBUF", as_base64(described(dependency=["schema_1.proto"])), ()),
    "NUL in an import": ("PROTOBUF", 'syntax = "proto3"; import "a\\0b"; message M { string a = 1; }', (("a\0b", EMPTY),)),
    "NUL in a descriptor's import": ("PROTOBUF", as_base64(described(dependency=["a\0b"])), ()),
    "anchors": (
        "JSON",
        objects(
            {f"c{n}": {"$ref": f"#x{10 * _ANCHORS - 1 - n}"} for n in range(_ANCHORS)},
            **{"$defs": {f"d{n}": {"$anchor": f"x{n}", "type": "string"} for n in range(10 * _ANCHORS)}},
        ),
        (),
    ),
    "names that clean alike": ("JSON", objects({name: {"type": "string"} for name in _ALIKE}), ()),
    "names of many characters": ("JSON", objects({"x" * 100_000: {"type": "string"}}), ()),
    "decimal of many digits": ("AVRO", decimal(precision=150, scale=150), ()),
    "symbol twice": ("AVRO", avro([{"name": "a", "type": {"type": "enum", "name": "e", "symbols": ["a", "a"]}}]), ()),
    "reference that nobody imports": (
        "PROTOBUF",
        MAIN,
        (("a\0b", EMPTY), ("--help", EMPTY), ("../../x", EMPTY), ("/x", EMPTY)),
    ),
    "an option for an import": ("PROTOBUF", f'import "--help"; {MAIN}'.replace("syntax", "syntax", 1), ()),
}


def commands(marker, folder, secret):
    """Names that protoc would take for options, as references and as a descriptor's imports: (what, text, references)."""
    shell = ("--plugin=protoc-gen-x=/bin/sh", f"--x_out={folder}", f"--x_opt=\nid > {marker}; exit 0\n")
    for what, names in {
        "a program": shell,
        "a folder": (f"--python_out={folder}",),
        "a file of options": (f"@{secret}",),
    }.items():
        imports = "".join(f"import {json.dumps(name)};" for name in names)
        references = tuple((name, EMPTY) for name in names)
        yield f"{what}, not imported", MAIN, references
        yield what, MAIN.replace(";", f"; {imports}", 1), references
        yield f"{what}, of a descriptor", as_base64(described(dependency=[*names, "google/protobuf/any.proto"])), ()
        yield f"{what}, of a descriptor and its references", as_base64(described(dependency=names)), references
