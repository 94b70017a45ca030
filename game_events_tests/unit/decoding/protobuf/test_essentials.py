"""A mistake in what decoding does not need loses no record; one in what it needs is reported in protoc's first words."""

import base64
import time
from contextlib import suppress

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from game_events.decoding.decoder import compile_schema
from game_events.decoding.frame import RegistrySchema
from game_events.decoding.protobuf.files import essential_text
from game_events.errors import DataError
from game_events_tests.support.decoding.helpers import python_class

TIMES = 'import "google/protobuf/timestamp.proto";'
BODY = 'syntax = "proto3"; package t; %s message Ev { string game = 1 %s; google.protobuf.Timestamp at = 2; %s } %s'
RULES = """syntax = "proto2"; package buf.validate; import "google/protobuf/descriptor.proto";
extend google.protobuf.FieldOptions { optional FieldRules field = 1159; }
message FieldRules { optional StringRules string = 14; }
message StringRules { optional uint64 min_len = 2; optional uint64 max_len = 3; }"""
REWRITTEN = "[(buf.validate.field) = { string: [ { min_len: 1 }, { max_len: 30 } ] }]"


def with_imports(imports="", options="", members="", more=""):
    return BODY % (TIMES + imports, options, members, more)


IRRELEVANT = {
    "an import that nothing uses": with_imports('import "acme/annotations.proto";'),
    "a weak import": with_imports('import weak "acme/annotations.proto";'),
    "rules without their file": with_imports(
        'import "buf/validate/validate.proto";', "[(buf.validate.field).string.min_len = 1]"
    ),
    "an option of an unknown file": with_imports(options="[(acme.pii) = true, deprecated = true]"),
    "an unknown option of a message": with_imports(members='option (acme.owner) = { name: "a;b}" team { x: [1, 2] } };'),
    "an unknown option of the file": with_imports('option (acme.owner) = "x"; option java_package = 7;'),
    "an option that an unknown file declares": with_imports(
        more="extend google.protobuf.FieldOptions { acme.Rule rule = 50001; }"
    ),
    "a service of an unknown type": with_imports(more="service S { rpc Do(acme.Missing) returns (Ev) { option (x) = {}; } }"),
    "two names that are one in JSON": with_imports(members="string user_id = 4; string userId = 5;"),
    "one JSON name twice": with_imports(members='string x = 4 [json_name = "same"]; string y = 5 [json_name = "same"];'),
    "a type of Google's without its import": BODY % ("", "", "google.protobuf.Duration took = 6;", ""),
    "a type of googleapis without its import": with_imports(members=".google.type.Money paid = 6;"),
    "a type of Confluent's without its import": with_imports(members="confluent.type.Decimal paid = 6;"),
    "windows": "\ufeff" + with_imports('import "a.proto";').replace(";", ";;\r\n"),
    "fields named like statements": with_imports(
        'import "a.proto";', members="string option = 4; string service = 5; string extend = 6;"
    ),
    "an enum of an unknown option": with_imports(
        members="enum E { A = 0 [(acme.x) = 1]; option (acme.y) = true; B = 1; } E e = 4;"
    ),
    "proto2, two names that are one in JSON": """syntax = "proto2"; package t; import "google/protobuf/timestamp.proto";
        message Ev { optional string game = 1; optional google.protobuf.Timestamp at = 2;
            optional string a_b = 3; optional int32 aB = 4; }""",
    "an import for options": """edition = "2024"; package t; import "google/protobuf/timestamp.proto";
        import option "acme/x.proto";
        export message Ev { string game = 1 [(acme.x) = 1]; google.protobuf.Timestamp at = 2; string a_b = 3; }""",
    "an edition, two names that are one in JSON": """edition = "2023"; package t; import "google/protobuf/timestamp.proto";
        message Ev { string game = 1; google.protobuf.Timestamp at = 2; string a_b = 3; int32 aB = 4; }""",
}


@pytest.mark.parametrize("what", IRRELEVANT)
def test_a_mistake_in_what_decoding_does_not_need_loses_no_record(what):
    kind = python_class(compile_schema(RegistrySchema(5, "PROTOBUF", IRRELEVANT[what])))
    message = kind.FromString(kind(game="chess", at={"seconds": 7}).SerializeToString())
    assert (message.game, message.at.seconds) == ("chess", 7)


def test_rules_as_confluents_registry_rewrites_them_are_left_out_also_of_a_reference():
    text = with_imports('import "buf/validate/validate.proto"; import "other.proto";', REWRITTEN, "Other other = 3;")
    other = f'syntax = "proto3"; package t; import "buf/validate/validate.proto"; message Other {{ string a = 1 {REWRITTEN}; }}'
    references = (("buf/validate/validate.proto", RULES), ("other.proto", other))
    schema = compile_schema(RegistrySchema(5, "PROTOBUF", text, references))
    assert schema.message((0,)).fields_by_name["other"].message_type.full_name == "t.Other"


def test_fields_of_one_json_name_in_a_reference_hinder_no_schema_that_imports_it():
    other = 'syntax = "proto3"; package t; message Other { string user_id = 1; string userId = 2; }'
    text = with_imports('import "other.proto";', members="Other other = 3;")
    schema = compile_schema(RegistrySchema(5, "PROTOBUF", text, (("other.proto", other),)))
    assert [f.name for f in schema.message((0,)).fields_by_name["other"].message_type.fields] == ["user_id", "userId"]


def test_a_descriptor_is_read_without_services_imports_and_json_names_that_are_wrong():
    file = FileDescriptorProto(name="e.proto", package="t", syntax="proto3", dependency=["a.proto", "b.proto"])
    file.public_dependency.append(1)
    message = file.message_type.add(name="Ev")
    message.field.add(name="game", number=1, type=9, label=1, json_name="same")
    message.field.add(name="other", number=2, type=9, label=1, json_name="same")
    message.field.add(name="at", number=3, type=11, label=1, type_name=".google.protobuf.Timestamp")
    file.service.add(name="S").method.add(name="Do", input_type=".acme.Missing", output_type=".t.Ev")
    schema = compile_schema(RegistrySchema(5, "PROTOBUF", base64.b64encode(file.SerializeToString()).decode()))
    assert python_class(schema)(game="x", at={"seconds": 1}).game == "x"
    message.field[2].type_name = ".acme.Missing"
    with pytest.raises(DataError, match=r"imports 'a\.proto', which the registry does not hold"):
        compile_schema(RegistrySchema(5, "PROTOBUF", base64.b64encode(file.SerializeToString()).decode()))


def test_indexes_of_message_types_stay_as_they_are():
    text = with_imports(
        'import "gone.proto"; service A {} ',
        more="message B { message C {} } extend google.protobuf.FileOptions { string o = 50001; } message D {}",
    )
    schema = compile_schema(RegistrySchema(5, "PROTOBUF", text))
    assert schema.type_paths() == {"t.Ev": (0,), "t.B": (1,), "t.B.C": (1, 0), "t.D": (2,)}


def test_options_that_change_what_is_decoded_stay():
    text = """edition = "2023"; package t; import "gone.proto"; option features.field_presence = IMPLICIT;
        message Ev { string game = 1; string other = 2 [(x) = 1, features.field_presence = EXPLICIT, deprecated = true];
        enum E { option allow_alias = true; option (x) = 1; A = 0; B = 0; } map<string, E> many = 3; }"""
    message = compile_schema(RegistrySchema(5, "PROTOBUF", text)).message((0,))
    assert [message.fields_by_name[name].has_presence for name in ("game", "other")] == [False, True]
    assert message.fields_by_name["many"].message_type.GetOptions().map_entry
    assert message.enum_types_by_name["E"].values_by_name["B"].number == 0


@pytest.mark.parametrize("spelled", ["features.field_presence = IMPLICIT", "features . field_presence = IMPLICIT",
    "features/* */.field_presence = IMPLICIT", "features = { field_presence: IMPLICIT }"])  # fmt: skip
def test_a_feature_stays_however_its_option_is_spelled(spelled):
    text = f"""edition = "2023"; package t; import "gone.proto"; message Ev {{ string a = 1 [{spelled}]; }}"""
    assert not compile_schema(RegistrySchema(5, "PROTOBUF", text)).message((0,)).fields[0].has_presence
    text = f"""edition = "2023"; package t; import "gone.proto"; option {spelled}; message Ev {{ string a = 1; }}"""
    assert not compile_schema(RegistrySchema(5, "PROTOBUF", text)).message((0,)).fields[0].has_presence


def test_extensions_of_messages_that_are_named_like_options_stay():
    text = """syntax = "proto2"; package t; import "gone.proto"; message PlayerOptions { extensions 100 to 200; }
        extend PlayerOptions { optional int32 x = 100; }"""
    schema = compile_schema(RegistrySchema(5, "PROTOBUF", text))
    assert [f.name for f in schema.pool.FindAllExtensions(schema.message((0,)))] == ["x"]


def test_an_import_that_may_add_fields_to_a_message_is_needed():
    base = ("base.proto", 'syntax = "proto2"; package t; message Base { extensions 100 to 200; }')
    text = 'syntax = "proto2"; package t; import "base.proto"; import "gone.proto"; message Ev { optional %s a = 1; }'
    with pytest.raises(DataError, match=r"gone\.proto: File not found"):
        compile_schema(RegistrySchema(5, "PROTOBUF", text % "Base", (base,)))
    assert compile_schema(RegistrySchema(5, "PROTOBUF", text % "string", (base,))).names == {(0,): "t.Ev"}


BROKEN = {
    "a number twice": ("message Ev { string a = 1; string b = 1; }", "Field number 1 has already been used"),
    "a reserved number": ("message Ev { string a = 19500; }", "19000 through 19999 are reserved"),
    "an alias": ("message Ev { E a = 1; enum E { A = 0; B = 0; } }", "allow_alias"),
    "required": ("message Ev { required string a = 1; }", "Required fields are not allowed"),
    "a map of enums": ("enum E { A = 0; } message Ev { map<E, string> a = 1; }", "Key in map fields cannot be enum"),
    "a default": ('message Ev { string a = 1 [default = "x"]; }', "Explicit default values are not allowed"),
    "a number that was given up": ("message Ev { reserved 1; string a = 1; }", "reserved number 1"),
    "a first value": ("message Ev { E a = 1; enum E { A = 1; } }", "must be zero"),
    "packed texts": ("message Ev { repeated string a = 1 [packed = true]; }", "packed"),
    "an unknown type": ('import "gone.proto"; message Ev { acme.Gone a = 1; }', "gone.proto: File not found"),
    "a text that ends": ("message Ev { string a = 1; } option (x) = { a: 1; message B {}", "Unexpected end of stream"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_decoding_needs_must_be_right_and_the_first_reason_is_told(what):
    body, words = BROKEN[what]
    with pytest.raises(DataError, match=rf"(?s)does not compile: .*{words}"):
        compile_schema(RegistrySchema(5, "PROTOBUF", f'syntax = "proto3";\n{body}'))


@pytest.mark.parametrize(
    "part", ["[", "option x = {", "message M {", "a[b]=c;", 'import "x";', "/*", '"', "service S {", "extend A { "]
)
def test_cutting_takes_linear_time_for_hostile_texts(part):
    def seconds(times):
        began = time.process_time()
        with suppress(DataError):
            essential_text(part * times, ())
        return time.process_time() - began

    seconds(1_000)
    assert seconds(80_000) < 40 * max(seconds(8_000), 0.05)
