"""Two runs read the same records and know different schemas: each record is in bronze or in quarantine, never in both."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import product

import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConflictError
from game_events.lakehouse.commits.commit import Commit, commit
from game_events.lakehouse.commits.transactions import Txn
from game_events.lakehouse.data.columns import QUARANTINE_COLUMNS
from game_events.pipeline.bronze.load import load_bronze
from game_events.pipeline.reporting.report import RunReport
from game_events_tests.support.faults import wrap_writes
from game_events_tests.support.model.bronze import LANE, Reader, Topic, offsets, pipeline_of, without_services, write
from game_events_tests.support.worlds.waves import PowerCut

#: Schemas that a run knows.
KNOWN = {"one": (1,), "another": (2,), "all": (1, 2)}
#: Commits of one slice: its announcement in bronze, quarantine's, bronze's.
COMMITS = 3


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A lakehouse whose bronze was just made, and a topic of two schemas."""
    without_services(monkeypatch)
    topic = Topic(records={LANE: [{"schema": 1 + n % 2} for n in range(6)]})
    lakehouses = (load_settings(lakehouse=str(tmp_path / str(n))) for n in range(1_000))

    def fresh():
        settings = next(lakehouses)
        load_bronze(pipeline_of(settings, Reader(Topic(), ())), RunReport())
        return lambda known, until=None: pipeline_of(settings, Reader(topic, KNOWN[known], until=until))

    return fresh


class Writes:
    """What happens right before, and right after, a commit is handed to the storage; by its number."""

    def __init__(self, before=None, after=None):
        self.before, self.after, self.made = before or {}, after or {}, 0

    def __enter__(self):
        self.patch = pytest.MonkeyPatch()
        wrap_writes(self.patch, self.around)
        return self

    def __exit__(self, *_):
        self.patch.undo()

    def around(self, write):
        def made(*arguments, **options):
            self.made += 1
            number = self.made
            self.before.get(number, lambda: None)()
            written = write(*arguments, **options)
            self.after.get(number, lambda: None)()
            return written

        return made


def cut():
    raise PowerCut


def run(pipeline, **happens):
    """One run; what a crash or a rival has left is the next one's."""
    with Writes(**happens) as writes, suppress(PowerCut, ConflictError):
        load_bronze(pipeline, RunReport())
    return writes.made


def assert_each_once(pipeline, records=6):
    """What bronze has passed is in one of the tables, once; what quarantine has beyond it is not in bronze."""
    found = Counter(offsets(pipeline.bronze)) + Counter(offsets(pipeline.quarantine))
    assert set(found.values()) <= {1}, f"in both: {sorted(c for c, times in found.items() if times > 1)}"
    reached = pipeline.bronze.open().transaction_version(LANE.app)
    assert {offset for _, _, offset in found} >= set(range(reached))
    assert len(found) <= records


def assert_no_record_is_in_both(world, ours, theirs, earlier, places, ends, crashes):
    """A rival before each of our commits, which ends by itself or crashes right after one of its own."""
    for place, end, crash in product(places, ends, crashes):
        runs = world()
        if earlier:
            run(runs(earlier), after={2: cut})

        def rival(runs=runs, end=end, crash=crash):
            run(runs(theirs, end), after={crash: cut})

        run(runs(ours), before={place: rival})
        assert_each_once(runs("all"))
        run(runs("all"))
        assert_each_once(runs("all"))
        assert runs("all").bronze.open().transaction_version(LANE.app) == 6


PAIRS = [("one", "all"), ("all", "one"), ("one", "another")]
PLACES = range(1, COMMITS + 1)


@pytest.mark.parametrize("earlier", [None, "another"])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_a_rival_that_knows_more_or_less_beside_any_commit_of_a_slice_puts_no_record_into_both(ours, theirs, earlier, world):
    assert_no_record_is_in_both(world, ours, theirs, earlier, PLACES, ends=[3], crashes=[None])


@pytest.mark.scenario
@pytest.mark.parametrize("earlier", [None, *KNOWN])
@pytest.mark.parametrize(("ours", "theirs"), list(product(KNOWN, KNOWN)))
def test_whatever_three_runs_know_and_wherever_they_end_or_crash_no_record_is_in_both(ours, theirs, earlier, world):
    assert_no_record_is_in_both(world, ours, theirs, earlier, PLACES, ends=[3, 6], crashes=[None, 1, 2])


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_a_slice_that_goes_on_late_finds_out_that_others_have_decided_meanwhile(ours, theirs, world):
    """Ours stands still before one of its commits; a second one crashes, and a third ends, which knows of both."""
    for place in PLACES:
        runs = world()

        def meanwhile(runs=runs):
            run(runs(theirs, 3), after={2: cut})
            run(runs("all", 4))

        run(runs(ours), before={place: meanwhile})
        assert_each_once(runs("all"))
        run(runs("all"))
        assert_each_once(runs("all"))


def test_a_slice_without_undecodable_records_is_one_commit_and_one_with_such_three(world):
    runs = world()
    assert run(runs("all", 3)) == 1
    assert runs("all").quarantine.open() is None
    assert run(runs("one")) == COMMITS
    bronze = runs("all").bronze.open()
    assert bronze.transaction_version(Txn.QUARANTINE_BEGUN) == bronze.transaction_version(Txn.QUARANTINE_DONE) == 1


def test_after_a_crash_between_the_two_tables_the_next_slice_shuts_the_crashed_one_out_and_then_all_is_as_before(world):
    runs = world()
    run(runs("one", 4), after={2: cut})
    assert offsets(runs("all").quarantine) != []
    assert run(runs("all", 4)) == COMMITS
    assert run(runs("all")) == 1
    assert_each_once(runs("all"))


def test_what_a_run_of_an_older_version_left_in_quarantine_before_it_crashed_is_left_out(world):
    runs = world()
    pipeline = runs("all")
    row = {"_kafka_topic_id": LANE.topic_id, "_kafka_partition": 0, "_kafka_offset": 2, "layer": "bronze", "_raw_value": b"x"}
    files = write(pipeline.quarantine, QUARANTINE_COLUMNS, [row])
    commit(Commit(pipeline.quarantine, QUARANTINE_COLUMNS, files, {LANE.app: None}, {LANE.app: 4}, None))
    run(pipeline)
    assert [offset for _, _, offset in offsets(pipeline.bronze)] == [0, 1, 3, 4, 5]
    assert_each_once(pipeline)
