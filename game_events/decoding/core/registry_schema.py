"""A schema of a registry or a file, as text."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass

#: Namespace of GUIDs of schemas without a registry.
_SPACE = uuid.UUID("6a0ce6a6-5b0f-4c0e-9d6c-8d6b0f0f51a7")


#: Bytes of one text, and of a text with all that it imports: a compiled schema takes many times as much memory.
MAX_TEXT, MAX_TEXTS = 2**22, 2**24


@dataclass(frozen=True)
class RegistrySchema:
    """One registered schema.

    Attributes:
        schema_id: the id or GUID in the records' frames.
        format: ``PROTOBUF``, ``AVRO`` or ``JSON``.
        text: schema text, or a base64 ``FileDescriptorProto`` (what the Confluent serializer registers by itself).
        references: (import name, text) of all imports, dependencies before dependents.
    """

    schema_id: int | str
    format: str
    text: str
    references: tuple[tuple[str, str], ...] = ()

    def completes(self, other: RegistrySchema) -> bool:
        """Whether it has references that the other lacks, and all of the other's."""
        return set(self.references) > set(other.references)

    def too_long(self) -> str | None:
        """Why its texts are too long to be compiled; None: they are not."""
        sizes = [len(text.encode("utf-8", "replace")) for text in (self.text, *(text for _, text in self.references))]
        if max(sizes) > MAX_TEXT:
            return f"one text is longer than {MAX_TEXT // 2**20} MiB"
        return f"with those that it imports it is longer than {MAX_TEXTS // 2**20} MiB" if sum(sizes) > MAX_TEXTS else None

    @property
    def digest(self) -> str:
        """SHA-256 over text and references."""
        whole = json.dumps([self.format, self.text, self.references], separators=(",", ":"))
        return hashlib.sha256(whole.encode()).hexdigest()


def schema_guid(kind: str, text: str, references: tuple[tuple[str, str], ...] = ()) -> str:
    """GUID of a schema without a registry, derived from its text."""
    return str(uuid.uuid5(_SPACE, RegistrySchema("", kind, text, references).digest))
