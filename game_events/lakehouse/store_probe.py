"""Probe of the object store's conditional put, on which every commit relies: of two writers of one object, one fails.

Older S3-compatible stores ignore the condition: the last writer silently wins, and rows are lost.
"""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import Schema
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import CommitProperties, create_table_with_add_actions

from game_events.errors import ConfigurationError
from game_events.lakehouse.storage import explain, is_remote, store_errors_named
from game_events.lakehouse.tables import Lakehouse

#: Each checks for the table before it creates it, so all have to check before the first has created it.
WRITERS = 8
_SCHEMA = Schema.from_arrow(pa.schema([("probe", pa.int64())]))


def refuse_unsafe_store(lakehouse: Lakehouse) -> str:
    """Let several writers create one table, by the code that creates every table; the result in words. Folders are not probed.

    Raises:
        ConfigurationError: more than one of them succeeded, or the store refuses access.
        TransientError: the store does not answer.
    """
    if not is_remote(lakehouse.root):
        return "a folder"
    lakehouse.table("_probe").require_writable()
    name = f"_probe-{uuid.uuid4()}"
    together = threading.Barrier(WRITERS)
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            won = sum(pool.map(lambda _: _makes(lakehouse, name, together), range(WRITERS)))
    finally:
        with store_errors_named(lakehouse.root):
            pafs.PyFileSystem(DeltaStorageHandler(lakehouse.root, lakehouse.options)).delete_dir(name)
    if won != 1:
        raise ConfigurationError(
            f"object store {lakehouse.root}: {won} of {WRITERS} writers created the same table: it ignores the condition of a "
            "conditional put (If-None-Match), so two runs would overwrite each other's commits. Update the store, or use "
            "another"
        )
    return "conditional puts hold"


def _makes(lakehouse: Lakehouse, name: str, together: threading.Barrier) -> bool:
    together.wait()
    # With retries a writer that lost would commit the table's version 1.
    once = CommitProperties(max_commit_retries=0)
    uri = lakehouse.table(name).uri
    options = lakehouse.options
    try:
        create_table_with_add_actions(uri, _SCHEMA, [], mode="error", storage_options=options, commit_properties=once)
    except (DeltaError, OSError) as error:
        known = explain(error, lakehouse.root)
        if known is not None:
            raise known from error
        return False
    return True
