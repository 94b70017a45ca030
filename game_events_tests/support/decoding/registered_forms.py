"""The forms in which a registry gives one protobuf schema back: as written, as a descriptor, as Confluent's registry writes it.

Source: confluentinc/schema-registry, `ProtobufSchema.toMessage`, `toField`: types have full names that begin with a dot, fields
of a oneof come behind the others, and a map is the messages that it is made of. Groups are left out there, and editions.
"""

import base64

from google.protobuf import descriptor_pb2

FIELD = descriptor_pb2.FieldDescriptorProto
LABELS = {FIELD.LABEL_REPEATED: "repeated ", FIELD.LABEL_REQUIRED: "required ", FIELD.LABEL_OPTIONAL: "optional "}
FORMS = ("text", "descriptor", "confluent")


def main_file(compiled):
    """The descriptor of a compiled schema's own file."""
    return compiled.main_file


def as_base64(file):
    """What serializers register."""
    return base64.b64encode(file.SerializeToString()).decode()


def in_form(form, text, file):
    """A schema in one of `FORMS`; None: the registry has no such form of it.

    Args:
        form: the form.
        text: as it was written.
        file: its descriptor.
    """
    if form == "text":
        return text
    return as_base64(file) if form == "descriptor" else confluent_text(file)


def confluent_text(file):
    """The text that Confluent's registry gives for a descriptor; None: it would lose a part of it."""
    if file.syntax == "editions" or any(f.type == FIELD.TYPE_GROUP for m in _messages(file.message_type) for f in m.field):
        return None
    proto3 = file.syntax == "proto3"
    lines = [f'syntax = "{file.syntax or "proto2"}";', *([f"package {file.package};"] if file.package else []), ""]
    lines += [f'import "{name}";' for name in file.dependency]
    for message in file.message_type:
        lines += ["", *_message(message, proto3)]
    for enum in file.enum_type:
        lines += ["", *_enum(enum)]
    return "\n".join([*lines, *_extend(file.extension, proto3), ""])


def _messages(level):
    for message in level:
        yield message
        yield from _messages(message.nested_type)


def _message(message, proto3):
    body = [f"reserved {r.start} to {r.end - 1};" for r in message.reserved_range]
    body += [f"{'  ' if option else ''}option map_entry = true;" for option in [message.options.map_entry] if option]
    inside = [[] for _ in message.oneof_decl]
    for field in message.field:
        in_oneof = field.HasField("oneof_index") and not field.proto3_optional
        (inside[field.oneof_index] if in_oneof else body).append(_field(field, proto3, in_oneof))
    for oneof, fields in zip(message.oneof_decl, inside, strict=True):
        body += [f"oneof {oneof.name} {{", *(f"  {line}" for line in fields), "}"] if fields else []
    body += [f"extensions {r.start} to {r.end - 1};" for r in message.extension_range]
    body += _extend(message.extension, proto3)
    for inner in message.nested_type:
        body += ["", *_message(inner, proto3)]
    for enum in message.enum_type:
        body += ["", *_enum(enum)]
    return [f"message {message.name} {{", *(f"  {line}" for line in body), "}"]


def _field(field, proto3, in_oneof=False):
    plain = in_oneof or (proto3 and field.label != FIELD.LABEL_REPEATED and not field.proto3_optional)
    label = "" if plain else LABELS[field.label]
    kind = field.type_name or FIELD.Type.Name(field.type).removeprefix("TYPE_").lower()
    options = [f"packed = {str(field.options.packed).lower()}"] if field.options.HasField("packed") else []
    options += [f'json_name = "{field.json_name}"'] if field.HasField("json_name") and not field.extendee else []
    if field.HasField("default_value") and not proto3:
        quoted = field.type in (FIELD.TYPE_STRING, FIELD.TYPE_BYTES)
        options.append(f'default = "{field.default_value}"' if quoted else f"default = {field.default_value}")
    more = f" [{', '.join(options)}]" if options else ""
    return f"{label}{kind} {field.name} = {field.number}{more};"


def _enum(enum):
    alias = ["  option allow_alias = true;"] if enum.options.allow_alias else []
    return [f"enum {enum.name} {{", *alias, *(f"  {v.name} = {v.number};" for v in enum.value), "}"]


def _extend(extensions, proto3):
    return [line for e in extensions for line in (f"extend {e.extendee} {{", f"  {_field(e, proto3)}", "}")]
