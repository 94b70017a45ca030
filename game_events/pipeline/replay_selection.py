"""The rows of quarantine that a replay tries again."""

import re
import uuid
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from game_events.decoding.frame import Reason, SchemaId, named
from game_events.errors import ConfigurationError
from game_events.rules import RULE_NAME

#: A frame has 4 bytes for the id.
MAX_SCHEMA_ID = 2**32 - 1


@dataclass(frozen=True)
class ReplaySelection:
    """Rows of quarantine, by reasons (of undecodable rows, or names of rules) and schema ids or GUIDs.

    Empty: all with a raw value that are not in bronze (except records that crash workers), and all that rules reject.
    """

    reasons: frozenset[str] = frozenset()
    schema_ids: frozenset[SchemaId] = frozenset()

    @property
    def undecodable(self) -> bool:
        """Whether undecodable rows are selected."""
        return not self.reasons or bool(self.reasons & set(Reason))

    @property
    def rejected(self) -> bool:
        """Whether rows that rules reject are selected; never by a schema id."""
        return not self.schema_ids and (not self.reasons or bool(self.rules))

    @property
    def rules(self) -> frozenset[str]:
        """The rules among the reasons."""
        return self.reasons - set(Reason)


def replay_selection(reasons: Collection[str], schema_ids: Collection[str]) -> ReplaySelection:
    """The selection for a user's input; ConfigurationError names a text that is no reason, schema id or GUID."""
    unknown = sorted(r for r in set(reasons) - set(Reason) if not re.fullmatch(RULE_NAME, r))
    if unknown:
        raise ConfigurationError(
            f"--reason: there is no {', '.join(unknown)}; there are {', '.join(sorted(Reason))}, and the names of rules"
        )
    return ReplaySelection(frozenset(reasons), frozenset(_schema_id(word) for word in schema_ids))


def _schema_id(word: str) -> SchemaId:
    registry, _, inner = word.rpartition("/")
    with suppress(ValueError):
        if not (inner.isascii() and inner.isdigit()):
            return named(registry, str(uuid.UUID(inner)))
        if int(inner) <= MAX_SCHEMA_ID:
            return named(registry, int(inner))
    raise ConfigurationError(
        f"--schema-id: {word!r} is neither a schema id (0 to {MAX_SCHEMA_ID}; us/7 of the source us) nor a GUID: see "
        "`game-events quarantine list`"
    )
