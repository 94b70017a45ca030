"""A schema of a registry or a file, as text."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass

#: Namespace of GUIDs of schemas without a registry.
_SPACE = uuid.UUID("6a0ce6a6-5b0f-4c0e-9d6c-8d6b0f0f51a7")


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

    @property
    def digest(self) -> str:
        """SHA-256 over text and references."""
        whole = json.dumps([self.format, self.text, self.references], separators=(",", ":"))
        return hashlib.sha256(whole.encode()).hexdigest()


def schema_guid(kind: str, text: str, references: tuple[tuple[str, str], ...] = ()) -> str:
    """GUID of a schema without a registry, derived from its text."""
    return str(uuid.uuid5(_SPACE, RegistrySchema("", kind, text, references).digest))
