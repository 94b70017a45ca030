"""Commits of many parts of one table, and handles on the parts."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from game_events.config.settings import load_settings
from game_events.errors import ConflictError, DataError, TransientError
from game_events.lakehouse.commits.commit import Commit, Landed
from game_events.lakehouse.commits.group import commit_group
from game_events.lakehouse.commits.transactions import restored
from game_events.lakehouse.data.reading import BATCH_INFO, read_arrow
from game_events.lakehouse.data.staging import StagedWriter
from game_events.lakehouse.parts import PartedTable, of_part
from game_events.lakehouse.table_pool import TablePool
from game_events.lakehouse.tables import PARTITIONED, SILVER, Lakehouse, paths, table_id
from game_events_tests.support.faults import at_commit

APP = "bronze:b"


@pytest.fixture
def lakehouse(tmp_path):
    return Lakehouse.of(load_settings(lakehouse=str(tmp_path), silver_layout=PARTITIONED))


def plan(lakehouse, game, numbers, before, after, *, kind=None, from_table=None, **options):
    """A commit of a game's rows: to the newest version, or to the one of a handle."""
    table = lakehouse.silver(game)
    part = from_table or table.open()
    rows = pa.table({"game_name": pa.array([game] * len(numbers), pa.string()), "n": pa.array(numbers, kind or pa.int64())})
    writer = StagedWriter(table, rows.schema, game)
    writer.write(rows.select(writer.schema.names))
    options = {"table_id": table_id(part), "info": {BATCH_INFO: str(after)}, **options}
    return Commit(table, rows.schema, writer.close(), {APP: before}, {APP: after}, from_table=part, **options)


def put(lakehouse, **games):
    """Rows of games, each after the batch that its part has."""
    found = {g: lakehouse.silver(g).open() for g in games}
    before = {g: None if part is None else part.transaction_version(APP) for g, part in found.items()}
    done = commit_group({g: plan(lakehouse, g, rows, before[g], (before[g] or 0) + 1) for g, rows in games.items()})
    assert all(isinstance(one, Landed) for one in done.values()), done
    return done


def numbers(lakehouse, game):
    table = lakehouse.silver(game)
    handle = table.open()
    return None if handle is None else sorted(read_arrow(table, handle)["n"].to_pylist())


def version(lakehouse):
    return DeltaTable(lakehouse.table(SILVER).uri).version()


def test_plans_of_many_games_are_one_version_and_each_sees_its_own_rows_and_progress(lakehouse):
    first = put(lakehouse, rummy=[1, 2], uno=[3])
    assert version(lakehouse) == 0
    assert (first["rummy"].rows, first["rummy"].table_rows, first["uno"].table_rows) == (2, 2, 1)
    put(lakehouse, uno=[4], spades=[])
    assert version(lakehouse) == 1
    assert {game: numbers(lakehouse, game) for game in ("rummy", "uno", "spades", "chess")} == {
        "rummy": [1, 2],
        "uno": [3, 4],
        "spades": [],
        "chess": None,
    }
    assert [lakehouse.silver(g).open().transaction_version(APP) for g in ("rummy", "uno", "spades")] == [1, 2, 1]
    assert lakehouse.games() == ["rummy", "spades", "uno"]
    assert DeltaTable(lakehouse.table(SILVER).uri).transaction_version(of_part(APP, "uno")) == 2


def test_numbers_of_the_games_are_added_up_in_the_commits_information_equal_ones_too(lakehouse):
    info = {BATCH_INFO: "7", "expired_rows": "2", "run_id": "a"}
    plans = {game: plan(lakehouse, game, [1], None, 7, info=info) for game in ("rummy", "uno", "spades")}
    assert all(isinstance(one, Landed) for one in commit_group(plans).values())
    (entry,) = DeltaTable(lakehouse.table(SILVER).uri).history()
    assert {key: entry[key] for key in info} == {BATCH_INFO: "7", "expired_rows": "6", "run_id": "a"}


def test_a_plan_that_lost_is_left_out_and_the_others_land(lakehouse):
    put(lakehouse, rummy=[1], uno=[2])
    late = {g: plan(lakehouse, g, [9], 1, 2) for g in ("rummy", "uno")}
    put(lakehouse, rummy=[3])
    done = commit_group(late)
    assert isinstance(done["rummy"], ConflictError)
    assert isinstance(done["uno"], Landed)
    assert (numbers(lakehouse, "rummy"), numbers(lakehouse, "uno")) == ([1, 3], [2, 9])
    assert not [f for f in late["rummy"].files if (lakehouse.silver("rummy").local_path / f.path).exists()]


def test_a_rival_between_comparison_and_commit_costs_its_own_game_alone(lakehouse):
    put(lakehouse, rummy=[1], uno=[2])
    late = {g: plan(lakehouse, g, [9], 1, 2) for g in ("rummy", "uno")}
    rivals = [lambda: put(lakehouse, rummy=[3])]

    def overtaken(write, *arguments, **options):
        if rivals:
            rivals.pop()()
        return write(*arguments, **options)

    with at_commit(overtaken):
        done = commit_group(late)
    assert isinstance(done["rummy"], ConflictError)
    assert isinstance(done["uno"], Landed)
    assert (numbers(lakehouse, "rummy"), numbers(lakehouse, "uno")) == ([1, 3], [2, 9])


def test_of_an_unknown_outcome_no_file_is_deleted_and_no_game_counts_as_done(lakehouse, monkeypatch):
    put(lakehouse, rummy=[1], uno=[2])
    late = {g: plan(lakehouse, g, [9], 1, 2) for g in ("rummy", "uno")}

    def lost(write, *arguments, **options):
        write(*arguments, **options)
        monkeypatch.setattr("game_events.lakehouse.tables.Table.open_to_read", refused)
        raise OSError("timed out")

    def refused(_):
        raise TransientError("503")

    with at_commit(lost):
        done = commit_group(late)
    monkeypatch.undo()
    assert all(isinstance(error, TransientError) for error in done.values())
    assert (numbers(lakehouse, "rummy"), numbers(lakehouse, "uno")) == ([1, 9], [2, 9])


def test_replaced_rows_of_a_game_are_gone_and_those_of_the_others_stay(lakehouse):
    put(lakehouse, rummy=[1], uno=[2])
    put(lakehouse, rummy=[3])
    done = commit_group({"rummy": plan(lakehouse, "rummy", [7], 2, 1, replace=True, reshape=True)})
    assert isinstance(done["rummy"], Landed)
    assert (numbers(lakehouse, "rummy"), numbers(lakehouse, "uno")) == ([7], [2])


def test_another_type_is_refused_for_its_game_and_taken_when_all_games_are_replaced(lakehouse):
    put(lakehouse, rummy=[1], uno=[2])
    again = {"replace": True, "reshape": True}
    text = plan(lakehouse, "rummy", ["a"], 1, 2, kind=pa.string(), **again)
    done = commit_group({"rummy": text, "uno": plan(lakehouse, "uno", [3], 1, 2)})
    assert isinstance(done["rummy"], DataError)
    assert "all games" in str(done["rummy"])
    assert (numbers(lakehouse, "rummy"), numbers(lakehouse, "uno")) == ([1], [2, 3])
    done = commit_group(
        {g: plan(lakehouse, g, [g], before, 3, kind=pa.string(), **again) for g, before in (("rummy", 1), ("uno", 2))}
    )
    assert all(isinstance(one, Landed) for one in done.values())
    assert (numbers(lakehouse, "rummy"), numbers(lakehouse, "uno")) == (["rummy"], ["uno"])


def test_a_restore_is_seen_by_every_game_until_its_rows_are_replaced_whichever_is_committed_first(lakehouse):
    put(lakehouse, rummy=[1], uno=[2])
    put(lakehouse, rummy=[3], uno=[4])
    DeltaTable(lakehouse.table(SILVER).uri).restore(0)
    assert restored(lakehouse.silver("uno").open())
    assert numbers(lakehouse, "uno") == [2]
    more = plan(lakehouse, "uno", [5], 2, 3, from_version=version(lakehouse))
    done = commit_group({"rummy": plan(lakehouse, "rummy", [1, 3], 2, 2, replace=True), "uno": more})
    assert isinstance(done["rummy"], Landed)
    assert isinstance(done["uno"], ConflictError)
    assert numbers(lakehouse, "rummy") == [1, 3]
    assert not restored(lakehouse.silver("rummy").open())
    assert not restored(lakehouse.table(SILVER).open())
    assert restored(lakehouse.silver("uno").open())
    done = commit_group({"uno": plan(lakehouse, "uno", [2, 4, 5], 2, 3, replace=True)})
    assert isinstance(done["uno"], Landed)
    assert not restored(lakehouse.silver("uno").open())
    assert numbers(lakehouse, "uno") == [2, 4, 5]


def test_rows_that_a_partition_has_before_its_game_are_no_rows_of_the_game(lakehouse):
    put(lakehouse, rummy=[1])
    writer = StagedWriter(lakehouse.silver("uno"), pa.schema([("game_name", pa.string()), ("n", pa.int64())]))
    writer.write(pa.table({"n": [99]}))
    table = lakehouse.table(SILVER)
    DeltaTable(table.uri).create_write_transaction([f.add_action() for f in writer.close()], "append", table.open().schema())
    assert numbers(lakehouse, "uno") is None
    put(lakehouse, uno=[2])
    assert numbers(lakehouse, "uno") == [2]


def test_a_moved_handle_knows_what_a_new_one_reads_from_log_and_checkpoint(lakehouse):
    handles, seen = TablePool(), []
    for number in range(12):
        games = ("rummy", "uno") if number % 3 else ("rummy",)
        parts = {g: handles.open(lakehouse.silver(g)) for g in games}
        before = {g: None if part is None else part.transaction_version(APP) for g, part in parts.items()}
        done = commit_group({g: plan(lakehouse, g, [number], before[g], number + 1, from_table=parts[g]) for g in games})
        seen.append(parts["rummy"])
        for game, landed in done.items():
            handles.publish(lakehouse.silver(game), landed.handle)
    table = lakehouse.table(SILVER)
    table.open().create_checkpoint()
    put(lakehouse, spades=[5])
    moved, opened = handles.peek(table), table.open()
    assert isinstance(opened, PartedTable)
    assert {g: (sorted(paths(moved.part(g))), dict(moved.states()[g].transactions)) for g in moved.games()} == {
        g: (sorted(paths(opened.part(g))), dict(opened.states()[g].transactions)) for g in opened.games()
    }
    for game in opened.games():
        asked = DeltaTable(table.uri).transaction_version(of_part(APP, game))
        assert opened.part(game).transaction_version(APP) == asked
    # A part stays as it was taken.
    assert [len(part.files()) for part in seen[1:]] == list(range(1, 12))
    assert seen[3].version() == 2


def test_a_file_outside_of_its_partitions_folder_is_refused(lakehouse):
    put(lakehouse, rummy=[1])
    table = lakehouse.table(SILVER)
    writer = StagedWriter(table, pa.schema([("n", pa.int64())]))
    writer.write(pa.table({"n": [99]}))
    action = writer.close()[0].add_action()
    action.partition_values = {"game_name": "rummy"}
    DeltaTable(table.uri).create_write_transaction([action], "append", table.open().schema())
    with pytest.raises(DataError, match="another engine"):
        lakehouse.silver("rummy").open()
