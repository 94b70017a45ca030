"""One schema as a registry, or a file, holds it: text that somebody else wrote."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass

#: GUIDs of schemas that no registry holds are made below this one.
_SPACE = uuid.UUID("6a0ce6a6-5b0f-4c0e-9d6c-8d6b0f0f51a7")


@dataclass(frozen=True)
class RegistrySchema:
    """One schema as the registry holds it.

    Attributes:
        schema_id: the id, or the GUID, that stands in the records' frames.
        format: ``PROTOBUF``, ``AVRO`` or ``JSON``.
        text: schema text, or a base64 ``FileDescriptorProto`` (what the Confluent serializer registers by itself).
        references: (import name, text) of everything it imports, dependencies before dependents.
    """

    schema_id: int | str
    format: str
    text: str
    references: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 over text and references: tells when a registry gives an old id a new meaning."""
        whole = json.dumps([self.format, self.text, self.references], separators=(",", ":"))
        return hashlib.sha256(whole.encode()).hexdigest()

    @property
    def has_own_guid(self) -> bool:
        """Whether its GUID was made by `schema_guid`, as of schemas that came with files, and not by a registry."""
        return isinstance(self.schema_id, str) and self.schema_id == schema_guid(self.format, self.text, self.references)


def schema_guid(kind: str, text: str, references: tuple[tuple[str, str], ...] = ()) -> str:
    """The GUID of a schema that no registry holds: the same for the same text, everywhere."""
    return str(uuid.uuid5(_SPACE, RegistrySchema("", kind, text, references).digest))
