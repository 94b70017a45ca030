"""Rules against a model in plain Python: random rows, rules, crashes and replays leave each row where the model says."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from game_events.lakehouse.data.columns import BRONZE_ONLY, OWN_COLUMNS
from game_events.lakehouse.table_properties import Sizes
from game_events.lakehouse.tables import QUARANTINE, Lakehouse
from game_events.pipeline.replay_selection import ReplaySelection
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh, replay_and_refresh
from game_events.rules import Rule
from game_events.workers.fanout import FanOut
from game_events.workers.rules import (
    BITS,
    DISPOSITION,
    DROP,
    HELD_BACK,
    KEEP,
    READMIT,
    REJECT,
    RULE_RESULT,
    RuleColumns,
    RuleOutcome,
)
from game_events_tests.support.worker_jobs import run
from game_events_tests.support.worlds.quality import Event, assert_sound, in_silver, rejected, rule, send_events
from game_events_tests.support.worlds.waves import power_cut_at

GAMES = ("uno", "chess", "go")
#: SQL and what it says of an event; NULL and errors are no TRUE.
CONDITIONS = {
    "amount > 0": lambda e: e.amount is not None and e.amount > 0,
    "amount < 3 OR note = 'a'": lambda e: (e.amount is not None and e.amount < 3) or e.note == "a",
    "note IS NULL": lambda e: e.note is None,
    "CAST(note AS INT) > 0": lambda e: (e.note or "").isdigit() and int(e.note) > 0,
    "10 / amount >= 5": lambda e: bool(e.amount) and 10 / e.amount >= 5,
}


def random_events(random, count):
    return [
        Event(random.choice(GAMES), random.choice([None, -1, 0, 1, 2, 5]), random.choice([None, "a", "7", "%"]))
        for _ in range(count)
    ]


def random_rules(random):
    return [
        rule(f"r{n}", sql, random.choice(["warn", "drop", "quarantine"]), games=random.choice([(), (), ("uno",)]))
        for n, sql in enumerate(random.sample(sorted(CONDITIONS), random.randint(0, 3)))
    ]


class Model:
    """Every event's place: silver, quarantine, dropped, or None as long as nothing is decided."""

    def __init__(self):
        self.events, self.places = [], []

    def judge(self, rules, event):
        broken = {
            r["action"] for r in rules if (not r["games"] or event.game in r["games"]) and not CONDITIONS[r["sql"]](event)
        }
        return "quarantine" if "quarantine" in broken else "dropped" if "drop" in broken else "silver"

    def send(self, events):
        self.events += events
        self.places += [None] * len(events)

    def decide(self, rules):
        """Quarantine's commit: with such rules, or since it was made once."""
        for n, (event, place) in enumerate(zip(self.events, self.places, strict=True)):
            if place is None:
                self.places[n] = "quarantine" if self.judge(rules, event) == "quarantine" else "decided"

    def run(self, rules):
        for n, (event, place) in enumerate(zip(self.events, self.places, strict=True)):
            if place in (None, "decided"):
                verdict = self.judge(rules, event)
                self.places[n] = "silver" if place == "decided" and verdict == "quarantine" else verdict
                if place == "decided" and self.breaks_drop(rules, event):
                    self.places[n] = "dropped"

    def breaks_drop(self, rules, event):
        return self.judge([r for r in rules if r["action"] == "drop"], event) == "dropped"

    def anew(self, rules):
        kept_out = {e.game for e, place in zip(self.events, self.places, strict=True) if place in ("quarantine", "dropped")}
        for n, (event, place) in enumerate(zip(self.events, self.places, strict=True)):
            if event.game in kept_out:
                verdict = self.judge(rules, event)
                self.places[n] = "quarantine" if place == "quarantine" and verdict == "dropped" else verdict

    def offsets(self, place, game=None):
        return [n for n, at in enumerate(self.places) if at == place and game in (None, self.events[n].game)]


@pytest.mark.scenario
@pytest.mark.parametrize("seed", [1, 2])
def test_random_waves_rules_crashes_and_replays_leave_each_row_where_the_model_says(make_settings, make_pipeline, seed):
    random, model = Random(seed), Model()  # noqa: S311 - a test's choices
    for step in range(4):
        events = random_events(random, 20)
        send_events(make_settings(), events)
        model.send(events)
        rules = random_rules(random)
        if step == 2:
            crashed = [*random_rules(random), rule("always", "amount > 0", "quarantine", games=())]
            with power_cut_at("rejections_decided"):
                refresh(make_pipeline(make_settings(rules=crashed)))
            model.decide(crashed)
        pipeline = make_pipeline(make_settings(rules=rules))
        report = refresh(pipeline)
        model.run(rules)
        if step in (1, 3):
            rules = random_rules(random)
            pipeline = make_pipeline(make_settings(rules=rules))
            replay_and_refresh(pipeline, report := RunReport(), ReplaySelection())
            model.anew(rules)
        assert report.success, report.errors
        said = f"seed {seed}, step {step}, rules {rules}"
        assert rejected(pipeline.settings) == model.offsets("quarantine"), said
        silver = in_silver(pipeline.settings)
        assert {g: offsets for g, offsets in silver.items() if offsets} == {
            g: found for g in GAMES if (found := model.offsets("silver", g))
        }, said
        assert_sound(pipeline)


ACTIONS = ("warn", "drop", "quarantine", "fail")
row = st.tuples(st.sampled_from(GAMES), st.integers(0, 2**70 - 1), st.sampled_from([KEEP, DROP, REJECT, HELD_BACK, READMIT]))


@settings(max_examples=40)
@given(rows=st.lists(row, max_size=40), cuts=st.integers(1, 7), sorted_rows=st.sampled_from([1, 5, 1_000]))
def test_workers_count_every_violation_and_write_every_row_to_its_one_place(rows, cuts, sorted_rows, tmp_path_factory):
    """70 rules: more than one bigint of bits."""
    lakehouse = Lakehouse(str(tmp_path_factory.mktemp("split")))
    lakehouse.sizes = Sizes(sorted_rows=sorted_rows)
    rules = tuple(Rule(name=f"r{n}", sql=f"rule {n}", action=ACTIONS[n % 4]) for n in range(70))
    # A rejected row violates a rule that rejects.
    rows = [(game, bits | (1 << 66 if fate == REJECT else 0), fate) for game, bits, fate in rows]
    schema = pa.schema([("game", pa.string()), *((f.name, f.type) for f in OWN_COLUMNS if f.name not in BRONZE_ONLY)])
    split = RuleOutcome(RuleColumns(rules, "game"), has_disposition=True, quarantine=lakehouse.table(QUARANTINE), run_id="me")
    numbers = range(len(rows))
    columns = {
        "game": pa.array([r[0] for r in rows], pa.string()),
        "_kafka_offset": pa.array(numbers, pa.int64()),
        "_raw_value": pa.array([b"%d" % n if rows[n][2] == REJECT else None for n in numbers], pa.binary()),
        "_violated_0": pa.array([r[1] % 2**BITS for r in rows], pa.int64()),
        "_violated_1": pa.array([r[1] >> BITS for r in rows], pa.int64()),
        DISPOSITION: pa.array([r[2] for r in rows], pa.int32()),
        "_kafka_headers": pa.array([[]] * len(rows), OWN_COLUMNS.field("_kafka_headers").type),
    }
    for field in (*schema, *OWN_COLUMNS):
        columns.setdefault(field.name, pa.nulls(len(rows), field.type))
    table = pa.table(columns)
    size = max(1, -(-len(rows) // cuts))
    batches = [b for n in range(0, len(rows), size) for b in table.slice(n, size).combine_chunks().to_batches()]
    result = run(FanOut(lakehouse, "silver", "game", schema, outcome=split), batches)
    counts = result.counts
    kept, out = (
        {
            game: [row for f in found for row in pq.read_table(f"{lakehouse.table(f.table).uri}/{f.path}").to_pylist()]
            for game, found in files.items()
        }
        for files in (result.files, result.rejected)
    )
    for game in GAMES:
        mine = [(n, bits, fate) for n, (g, bits, fate) in enumerate(rows) if g == game]
        assert [r["_kafka_offset"] for r in kept.get(game, [])] == [n for n, _, fate in mine if fate in (KEEP, READMIT)]
        gone = [(r["_kafka_offset"], r["_raw_value"], r["_kafka_headers"], r["reason"], r["game"]) for r in out.get(game, [])]
        firsts = [(n, next(k for k in range(2, 70, 4) if bits >> k & 1)) for n, bits, fate in mine if fate == REJECT]
        assert gone == [(n, b"%d" % n, None, f"r{first}", game) for n, first in firsts]
        if not mine:
            assert game not in counts
            continue
        found = counts[game]
        assert (found.rows, found.dropped) == (len(mine), sum(fate == DROP for _, _, fate in mine))
        assert (found.held, found.readmitted) == tuple(sum(fate == at for _, _, fate in mine) for at in (HELD_BACK, READMIT))
        assert found.quarantined == found.held + len(gone)
        sums = np.array([[bits >> k & 1 for k in range(70)] for _, bits, _ in mine]).sum(axis=0)
        assert +found.violated == {f"r{k}": int(n) for k, n in enumerate(sums) if n}
        assert set(found.examples) == {f"r{k}" for k in range(3, 70, 4) if sums[k]}


def test_rows_that_only_tell_what_rules_say_are_counted_and_rejected_but_never_written(tmp_path):
    lakehouse = Lakehouse(str(tmp_path))
    rules = (Rule(name="positive", sql="x > 0", action="quarantine"), Rule(name="noted", sql="n IS NOT NULL"))
    split = RuleOutcome(RuleColumns(rules, "game"), has_disposition=True, quarantine=lakehouse.table(QUARANTINE), apart=True)
    schema = pa.schema([("game", pa.string()), ("_kafka_offset", pa.int64()), ("made", pa.int64())])
    # Offsets 0 to 2 are judged; a transformation made two rows of 0 and none of 2.
    columns = {
        "game": pa.array(["uno"] * 5),
        "_kafka_offset": pa.array([0, 1, 2, 0, 0]),
        "made": pa.array([None, None, None, 10, 20], pa.int64()),
        "_violated_0": pa.array([0, 1, 2, None, None], pa.int64()),
        DISPOSITION: pa.array([KEEP, REJECT, KEEP, None, None], pa.int32()),
        RULE_RESULT: pa.array([True, True, True, False, False]),
        "_raw_value": pa.array([None, b"1", None, None, None], pa.binary()),
    }
    for name in BRONZE_ONLY:
        columns.setdefault(name, pa.nulls(5, OWN_COLUMNS.field(name).type))
    columns["_kafka_headers"] = pa.array([[], [], [], None, None], OWN_COLUMNS.field("_kafka_headers").type)
    task = FanOut(lakehouse, "silver", "game", schema, outcome=split)
    result = run(task, pa.table(columns).to_batches())
    (written,), (rejected_file,) = result.files["uno"], result.rejected["uno"]
    assert pq.read_table(f"{lakehouse.silver('uno').uri}/{written.path}").column("made").to_pylist() == [10, 20]
    held = pq.read_table(f"{lakehouse.table(QUARANTINE).uri}/{rejected_file.path}").to_pylist()
    assert [(r["_kafka_offset"], r["_raw_value"], r["reason"]) for r in held] == [(1, b"1", "positive")]
    counts = result.counts["uno"]
    assert (counts.rows, dict(counts.violated)) == (3, {"positive": 1, "noted": 1})
