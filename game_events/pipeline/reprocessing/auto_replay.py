"""Automatic replay in each run: rows with a schema that became known, and rows replayed to a bronze that is gone."""

import logging
from collections import Counter
from contextlib import suppress

import pyarrow.compute as pc
from deltalake import DeltaTable

from game_events.decoding.core.reasons import Reason
from game_events.decoding.core.wire_format import SchemaId
from game_events.errors import ConflictError, TransientError
from game_events.lakehouse.commits.commit import commit, without_rows
from game_events.lakehouse.commits.restore_check import refuse_restored
from game_events.lakehouse.commits.transactions import Txn, txn, txns
from game_events.lakehouse.data.snapshot import may_hold, read_arrow
from game_events.lakehouse.event_columns import SCHEMA_COLUMNS
from game_events.lakehouse.layers import Layer
from game_events.lakehouse.tables import add_actions
from game_events.pipeline.context import Pipeline
from game_events.pipeline.quarantine.replay_marks import note_replay
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.reprocessing.replay import replay
from game_events.pipeline.reprocessing.selection import ReplaySelection

log = logging.getLogger(__name__)

#: Unknown ids that a run asks the registry about, those with most rows first: there may be any number of invalid ids.
IDS_ASKED = 200


def replay_what_became_known(pipeline: Pipeline, report: RunReport) -> None:
    """Complete an interrupted replay, then replay what is due; reads two table logs if quarantine has no such rows."""
    note_replay(pipeline)
    quarantine, bronze = pipeline.open_quarantine(), pipeline.open_bronze()
    if quarantine is None or bronze is None:
        return
    ids, elsewhere = _due(pipeline, quarantine, str(bronze.metadata().id))
    try:
        untried = (i for i, rows in ids.most_common(IDS_ASKED) if rows != txn(quarantine, Txn.REPLAY_LEFT.of(i)))
        known = frozenset(i for i in untried if pipeline.catalog.knows(i))
    except TransientError:
        log.info("registry_down=true unknown_ids=%d asked_again=next_run", len(ids))
        return
    if known:
        done = replay(pipeline, report, ReplaySelection(frozenset({Reason.UNKNOWN_SCHEMA}), known))
        _note_left(pipeline, known, sum(ids[i] for i in known) - done.rows)
    if elsewhere:
        replay(pipeline, report, ReplaySelection())


def _note_left(pipeline: Pipeline, known: frozenset[SchemaId], expected: int) -> None:
    """Note how many rows of these ids still do not decode: no run tries them again before there are others."""
    quarantine, bronze = pipeline.open_quarantine(), pipeline.open_bronze()
    if not expected or quarantine is None or bronze is None:
        return
    quarantine = refuse_restored(pipeline.quarantine, quarantine)
    ids, _ = _due(pipeline, quarantine, str(bronze.metadata().id))
    left = {i: ids[i] for i in known if ids[i]}
    if sum(left.values()) != expected:
        return  # a concurrent run has added rows that were not tried
    advance = {Txn.REPLAY_LEFT.of(i): rows for i, rows in left.items()}
    with suppress(ConflictError):  # a concurrent run noted it, or the next run will
        commit(without_rows(pipeline.quarantine, quarantine, {}, txns(quarantine, advance), advance))


def _due(pipeline: Pipeline, quarantine: DeltaTable, bronze_id: str) -> tuple[Counter[SchemaId], bool]:
    """Rows of each unknown id, and whether rows were replayed to another bronze; reads only files that may have such rows."""
    actions = add_actions(quarantine)
    if "max.reason" not in actions.column_names:
        return Counter(), False
    waits = may_hold(actions, "reason", Reason.UNKNOWN_SCHEMA, Reason.UNKNOWN_SCHEMA)
    elsewhere = False
    if "null_count.replayed_batch" in actions.column_names:
        waits = pc.and_(waits, pc.not_equal(pc.fill_null(actions["null_count.replayed_batch"], -1), 0))
    if "max.replayed_table" in actions.column_names:
        other = [pc.not_equal(actions[f"{end}.replayed_table"], bronze_id) for end in ("min", "max")]
        decodable = pc.fill_null(pc.equal(actions["min.layer"], Layer.SILVER), False)
        may = pc.and_(pc.fill_null(pc.or_kleene(*other), False), pc.invert(decodable))
        # Among released rows of silver.
        candidates = actions.filter(may).column("path").to_pylist()
        rows = read_arrow(pipeline.quarantine, quarantine, ["layer", "replayed_table"], candidates)
        of_bronze = pc.and_(pc.equal(rows["layer"], Layer.BRONZE), pc.not_equal(rows["replayed_table"], bronze_id))
        elsewhere = bool(pc.any(of_bronze).as_py())
    chosen = actions.filter(waits).column("path").to_pylist()
    found = read_arrow(pipeline.quarantine, quarantine, ["reason", *SCHEMA_COLUMNS, "replayed_batch"], chosen)
    unknown = found.filter(pc.equal(found["reason"], Reason.UNKNOWN_SCHEMA))
    if "replayed_batch" in unknown.column_names:
        unknown = unknown.filter(pc.is_null(unknown["replayed_batch"]))
    ids: Counter[SchemaId] = Counter()
    for name in set(SCHEMA_COLUMNS) & set(unknown.column_names):
        counted = pc.value_counts(unknown[name].drop_null())
        ids.update({entry["values"]: entry["counts"] for entry in counted.to_pylist()})
    return ids, elsewhere
