"""Archive of bronze's records: records of an archive are never added to records from elsewhere.

An archive's files are in no order of offsets, so an offset does not show whether bronze has a record. So bronze stores which
archive its micro-batches were read from, until the first one from elsewhere or a full refresh.
"""

import hashlib
import re

from deltalake import DeltaTable

from game_events.errors import ConfigurationError
from game_events.lakehouse.commits.transactions import Txn, counter
from game_events.pipeline.state.offsets import next_offsets
from game_events.sources.core.source import Offsets, Source
from game_events.sources.files.source import FileSource

#: A topic's id: 16 bytes as librdkafka writes them.
_TOPIC_ID = re.compile(r"[A-Za-z0-9+/]{21}[AQgw]")


def ends_of_origins(origins: Offsets) -> Offsets:
    """Split -> end of an archive's records, for each topic that they were read from; plain files have no topic."""
    return {split: end for split, end in origins.items() if _TOPIC_ID.fullmatch(split.topic_id)}


def after_origins(bronze: DeltaTable, origins: Offsets) -> Offsets:
    """Split -> next offset of these topics: a run that reads them continues after what the archive and bronze have."""
    ends = ends_of_origins(origins)
    reached = next_offsets(bronze, ends)
    return {split: max(end, reached.get(split, 0)) for split, end in ends.items()}


def archive_noted(bronze: DeltaTable, source: Source) -> dict[str, int]:
    """`txn` -> value that the commit of a micro-batch of this source sets."""
    now = _number(source.archive) if isinstance(source, FileSource) and source.archive is not None else 0
    return {} if now == counter(bronze, Txn.ARCHIVE) else {Txn.ARCHIVE: now}


def refuse_twice(bronze: DeltaTable | None, quarantine: DeltaTable | None, archive: str, ends: Offsets) -> None:
    """Stop before records of an archive are added to a lakehouse that may have them already.

    `ends`: split -> next offset of bronze when it has read the archive.

    Raises:
        ConfigurationError: bronze has records from elsewhere.
    """
    if bronze is None:
        other = quarantine is not None
    else:
        other = bool(bronze.transaction_version(Txn.BATCH)) and bronze.transaction_version(Txn.ARCHIVE) != _number(archive)
        other = other and next_offsets(bronze, ends) != ends
    if other:
        raise ConfigurationError(
            "GAME_EVENTS_FILES_PATH is an archive, and the lakehouse has records that are not from it, but from a topic, other "
            "files, another archive, or this one in another place: they would be there twice. Nothing was read. Set "
            "GAME_EVENTS_LAKEHOUSE to a new folder, or the source back to what it was"
        )


def _number(archive: str) -> int:
    """A transaction holds one 64-bit number."""
    return int.from_bytes(hashlib.sha256(archive.encode()).digest()[:7]) | 1
