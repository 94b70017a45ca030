"""The native decoder (ptars, Rust) of a message type, built on a twin of its descriptors; its failures contained.

The twin has the same wire format and nothing that the native decoder refuses or gets wrong: no names but ``f<number>``, one
proto3 file, no recursion, no google types, no enums. Integers of 32 bits are read with 64, so that nothing is cut off unseen,
strings as bytes, so that bad UTF-8 does not fail a batch; `protobuf_reading` makes columns of it.
"""

from __future__ import annotations

import ptars
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from game_events.decoding.protobuf.fields import MESSAGES, Label, Node, Role
from game_events.errors import DataError

_CONFIG = ptars.PtarsConfig(
    list_nullable=True,
    map_nullable=True,
    # Without it, a map entry that lacks its value (legal bytes) is a panic.
    map_value_nullable=True,
)
_BYTES = FieldDescriptorProto.TYPE_BYTES
_WIDER = {
    FieldDescriptor.TYPE_INT32: FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32: FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_SINT32: FieldDescriptor.TYPE_SINT64,
    FieldDescriptor.TYPE_ENUM: FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_STRING: _BYTES,
}


class NativeDecoder:
    """Decodes batches of one message type into columns ``f<number>`` as the twin has them."""

    def __init__(self, nodes: list[Node]) -> None:
        """Builds the twin.

        Raises:
            DataError: the native library does not take it.
        """
        file = FileDescriptorProto(name="native.proto", package="native", syntax="proto3")
        _fill(file.message_type.add(name="M"), ".native.M", nodes)
        try:
            pool = DescriptorPool()
            pool.Add(file)
            message = pool.FindMessageTypeByName("native.M")
            self._handler = ptars.HandlerPool([message.file], config=_CONFIG).get_for_message(message)
        except BaseException as error:  # noqa: BLE001 - a native panic is one; `_contained` lets the others go on
            raise _contained(error, "the native decoder does not take the type") from None

    def decode(self, payloads: pa.BinaryArray) -> pa.RecordBatch:
        """Decode an array whole, one row out for each row in.

        Raises:
            DataError: at least one payload is no message of the type.
        """
        try:
            return self._handler.array_to_record_batch(payloads)
        except BaseException as error:  # noqa: BLE001 - a native panic is one; `_contained` lets the others go on
            raise _contained(error, "not a message of its schema") from None


def _contained(error: BaseException, what: str) -> DataError:
    """A native failure as our own error; whatever asks the process to end goes on."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return DataError(f"{what}: {error}")
    raise error


def _fill(message: DescriptorProto, path: str, nodes: list[Node]) -> None:
    for node in nodes:
        name = f"f{node.native}"
        if node.key is not None:
            entry = message.nested_type.add(name=f"F{node.native}Entry")
            entry.options.map_entry = True
            key = entry.field.add(name="key", number=1, label=FieldDescriptorProto.LABEL_OPTIONAL)
            # Protobuf allows no bytes here: bad UTF-8 in the key of a map does fail the batch.
            is_text = node.key.descriptor.type == FieldDescriptor.TYPE_STRING
            key.type = FieldDescriptorProto.TYPE_STRING if is_text else _scalar(node.key)
            value = entry.field.add(name="value", number=2, label=FieldDescriptorProto.LABEL_OPTIONAL)
            _typed(value, node, message, path)
            message.field.add(
                name=name,
                number=node.native,
                label=FieldDescriptorProto.LABEL_REPEATED,
                type=FieldDescriptorProto.TYPE_MESSAGE,
                type_name=f"{path}.{entry.name}",
            )
            continue
        label = FieldDescriptorProto.LABEL_REPEATED if node.label is Label.LIST else FieldDescriptorProto.LABEL_OPTIONAL
        item = message.field.add(name=name, number=node.native, label=label)
        _typed(item, node, message, path)
        if node.label is Label.ONE and node.presence and item.type != FieldDescriptor.TYPE_MESSAGE:
            item.proto3_optional = True
            item.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")


def _typed(item: FieldDescriptorProto, node: Node, into: DescriptorProto, path: str) -> None:
    if node.role in MESSAGES:
        name = f"M{node.native}"
        item.type, item.type_name = FieldDescriptorProto.TYPE_MESSAGE, f"{path}.{name}"
        _fill(into.nested_type.add(name=name), f"{path}.{name}", node.children)
    elif node.role is Role.SCALAR:
        item.type = _scalar(node)
    else:
        item.type = _BYTES


def _scalar(node: Node) -> FieldDescriptorProto.Type.ValueType:
    return FieldDescriptorProto.Type.ValueType(_WIDER.get(node.descriptor.type, node.descriptor.type))
