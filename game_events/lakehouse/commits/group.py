"""One commit for many parts of a table: each part's plan is compared by itself, and those that hold are committed together.

Commits of 1,000 parts, one by one, would be 1,000 versions of one table, each after a conflict with the one before.

Guarantee: of the plans whose transaction ids are unchanged all are in one version, or none; a plan that has lost to a
concurrent writer does not keep the others from it.

And work for each game, in as many threads as the storage's latency asks for, each failing alone.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count, islice
from statistics import median
from typing import TypeVar, cast

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from game_events.config.masking import without_secrets
from game_events.config.settings import Settings
from game_events.errors import ConflictError, DataError, GameEventsError
from game_events.lakehouse import failpoints
from game_events.lakehouse.commits.commit import ATTEMPTS, Commit, Landed, commit, landed_of, require
from game_events.lakehouse.commits.evolution import changed_types
from game_events.lakehouse.commits.transactions import RESTORE_CHECKED, Txn, counter, restored, restored_between
from game_events.lakehouse.data.constraints import broken_in, sentence
from game_events.lakehouse.data.reading import BATCH_INFO
from game_events.lakehouse.data.staging import discard
from game_events.lakehouse.parts import Part, PartedTable, PartState, of_part
from game_events.lakehouse.table_properties import unmarked
from game_events.lakehouse.tables import Table, table_id, version_of

log = logging.getLogger(__name__)

#: Outcome of one plan.
Outcome = Landed | GameEventsError | DeltaError | OSError


def commit_group(plans: Mapping[str, Commit]) -> dict[str, Outcome]:
    """Commit the plans of games: one commit for each table that they are parts of.

    Returns:
        game -> its visible commit, or the error for which there is none, as `commit` raises it: ConflictError if a concurrent
        writer was first in this part. Files are kept or deleted as by `commit`.
    """
    outcome: dict[str, Outcome] = {}
    by_table: dict[str, dict[str, Commit]] = {}
    for game, plan in plans.items():
        by_table.setdefault(plan.table.uri, {})[game] = plan
    for of_table in by_table.values():
        outcome |= _Group(of_table).committed()
    return outcome


class _Group:
    """The plans for one table."""

    def __init__(self, plans: Mapping[str, Commit]) -> None:
        self._left = dict(plans)
        self._table = next(iter(plans.values())).table.whole
        self._outcome: dict[str, Outcome] = {}

    def committed(self) -> dict[str, Outcome]:
        try:
            for _ in range(ATTEMPTS):
                whole = self._opened()
                self._compare(whole)
                if not self._left or self._commit(whole):
                    return self._outcome
        except (GameEventsError, DeltaError, OSError) as error:  # of the table: nothing was sent
            self._drop(self._left, error)
            return self._outcome
        self._drop(self._left, ConflictError(f"{self._table.name}: concurrent runs won {ATTEMPTS} attempts to commit"))
        return self._outcome

    def _opened(self) -> PartedTable | None:
        """The newest version; after a restore one in which every part is noted as restored."""
        planned = (plan.from_table.whole for plan in self._left.values() if isinstance(plan.from_table, Part))
        whole = next((handle for handle in planned if handle.is_newest()), None) or self._table.open()
        if not isinstance(whole, PartedTable):
            return None
        if restored(whole):
            # For every part: the next commit to one of them would hide the restore from the others.
            noted = {of_part(Txn.RESTORED, game): 1 for game in whole.games()}
            info = {RESTORE_CHECKED: "rows of each part are to be replaced"}
            none = pa.schema([])
            commit(Commit(self._table, none, [], {}, noted, table_id(whole), whole.version(), info=info, from_table=whole))
            whole = self._table.open()
        return whole if isinstance(whole, PartedTable) else None

    def _compare(self, whole: PartedTable | None) -> None:
        """Take out the plans that do not hold for this version."""
        restored_since = self._restored_since(whole)
        self._drop_other_types(whole)
        columns = pa.schema([])
        known = set[int]()
        for game, plan in list(self._left.items()):
            try:
                if plan.from_version in restored_since:
                    was = f"it was restored since version {plan.from_version}, which was planned from"
                    raise ConflictError(f"{plan.table.name}: {was}")
                _require(plan, whole.part(game) if whole is not None else None)
                if id(plan.schema) not in known:
                    columns = _with_columns(self._table, columns, plan.schema)
                    known.add(id(plan.schema))
            except (ConflictError, DataError) as error:
                self._drop([game], error)
        self._drop_other_types(whole)  # again: perhaps not all of the table is replaced any more
        self._drop_breaking(whole)

    def _drop_breaking(self, whole: PartedTable | None) -> None:
        """Take out the plans with rows that break a constraint of the table; asked once for all of them."""
        if whole is None:
            return
        try:
            broken = broken_in(self._table, whole, [file for plan in self._left.values() for file in plan.files])
        except DataError as error:
            self._drop(self._left, error)
            return
        for game, plan in list(self._left.items()):
            first = next((broken[file.path] for file in plan.files if file.path in broken), None)
            if first is not None:
                self._drop([game], DataError(sentence(plan.table, first)))

    def _restored_since(self, whole: PartedTable | None) -> set[int]:
        """Versions that were planned from, and since which the table was restored: looked for once for all plans."""
        if whole is None:
            return set()
        versions = {plan.from_version for plan in self._left.values() if plan.from_version is not None}
        return {version for version in versions if restored_between(self._table, version, whole.version())}

    def _drop_other_types(self, whole: PartedTable | None) -> None:
        """Take out the plans whose columns do not fit into the table, unless all of it is replaced."""
        if whole is None or _replaces_all(self._left, whole):
            return
        known: dict[int, list[str]] = {}  # most plans have the same schema
        for game, plan in list(self._left.items()):
            if id(plan.schema) not in known:
                known[id(plan.schema)] = changed_types(whole, plan.schema)
            if other := known[id(plan.schema)]:
                was = f"the types of the table are others than those of the new rows: {'; '.join(other)}"
                way_out = "Refresh the table of all games fully, in one run: that gives it the new types"
                self._drop([game], DataError(f"{plan.table.name}: {was}. {way_out}"))

    def _drop(self, games: Iterable[str], error: Outcome) -> None:
        for game in list(games):
            plan = self._left.pop(game)
            discard(plan.table, list(plan.files))
            self._outcome[game] = error

    def _commit(self, whole: PartedTable | None) -> bool:
        """Commit what is left; False: another commit came first, so each plan has to be compared again."""
        try:
            landed = commit(_merged(self._table, whole, self._left))
        except ConflictError:
            return False
        except (GameEventsError, DeltaError, OSError) as error:
            # `commit` has deleted the files, or kept them as the outcome is unknown.
            self._outcome |= dict.fromkeys(self._left, error)
            return True
        self._outcome |= {game: _landed(plan, landed, game) for game, plan in self._left.items()}
        return True


def _require(plan: Commit, part: Part | None) -> None:
    """The comparison of a plan with a game's part, of which it is known whether the table was restored."""
    if counter(part, Txn.RESTORED) and plan.from_version is not None:
        raise ConflictError(f"{plan.table.name}: it was restored, and rows of {plan.table.part} are to be replaced first")
    is_the_same = part is not None and plan.from_version == part.version()
    require(plan if is_the_same else replace(plan, from_version=None), part)


def _with_columns(table: Table, columns: pa.Schema, more: pa.Schema) -> pa.Schema:
    """The columns of all plans so far and of another one, and the one that names the game.

    Raises:
        DataError: a column has another type than in the plan of another game.
    """
    new = [field for field in more if field.name not in columns.names]
    other = [f.name for f in more if f.name in columns.names and f.type != columns.field(f.name).type]
    if other:
        raise DataError(f"{table.name}: columns have other types than those of other games: {', '.join(other)}")
    if more.names and table.by not in (*columns.names, *more.names):
        new.insert(0, pa.field(str(table.by), pa.string()))
    return pa.schema([*columns, *new], columns.metadata) if new else columns


def _replaces_all(plans: Mapping[str, Commit], whole: PartedTable) -> bool:
    """Whether the plans replace all rows of the table, columns included."""
    held = {game for game, state in whole.states().items() if state.files}
    return held <= plans.keys() and all(plan.replace and plan.reshape for plan in plans.values())


def _merged(table: Table, whole: PartedTable | None, plans: Mapping[str, Commit]) -> Commit:
    columns = _columns_of_all(table, plans)
    expected: dict[str, int | None] = {}
    advance: dict[str, int] = {}
    removed: set[str] = set()
    info: dict[str, str] = {}
    for game, plan in plans.items():
        state = whole.states().get(game, PartState()) if whole is not None else PartState()
        moved = _moved(plan, state)
        expected |= {of_part(app, game): state.transactions.get(app) for app in (*plan.expect_transactions, *moved)}
        advance |= {of_part(app, game): to for app, to in moved.items()}
        removed |= plan.rewritten | _replaced(plan, state)
        _add_info(info, plan.info)
    reshaped = whole is not None and _replaces_all(plans, whole)
    return Commit(
        table,
        unmarked(columns),
        [file for plan in plans.values() for file in plan.files],
        expected,
        advance,
        table_id(whole),
        from_version=version_of(whole),
        replace=reshaped,
        reshape=reshaped,
        rewritten=frozenset() if reshaped else frozenset(removed),
        partition_by=(str(table.by),),
        info=info,
        description=next(iter(plans.values())).description,
        compared_again=True,
        from_table=whole,
    )


def _columns_of_all(table: Table, plans: Mapping[str, Commit]) -> pa.Schema:
    columns = pa.schema([])
    for schema in {id(plan.schema): plan.schema for plan in plans.values()}.values():
        columns = _with_columns(table, columns, schema)
    return columns


def _moved(plan: Commit, state: PartState) -> dict[str, int]:
    """The part's transaction ids that its plan sets, with their values."""
    moved = dict(plan.set_transactions)
    if plan.replace and state.transactions.get(Txn.RESTORED):  # with all rows replaced, it does not matter any more
        moved[Txn.RESTORED] = 0
    return moved


def _replaced(plan: Commit, state: PartState) -> set[str]:
    """Paths of the part's files if its plan replaces them all."""
    if plan.replace or not state.transactions:  # files of no part are leftovers
        return {file.plain_path for file in state.files}
    return set()


def _add_info(info: dict[str, str], more: Mapping[str, str]) -> None:
    """Add one part's information: the highest batch, the sum of other numbers, the first of other texts."""
    for key, value in more.items():
        before = info.get(key)
        if before is None:
            info[key] = value
        elif before.isdecimal() and value.isdecimal():
            info[key] = str(max(int(before), int(value)) if key == BATCH_INFO else int(before) + int(value))


def _landed(plan: Commit, landed: Landed, game: str) -> Landed:
    """What a group's commit is for one part."""
    part = cast("PartedTable", landed.handle).part(game)
    if part is not None:
        return landed_of(plan, part)
    # Somebody has taken it away since.
    rows = sum(file.rows for file in plan.files)
    return replace(landed, rows=rows, files=len(plan.files), table_rows=0, table_bytes=0, handle=None)


T = TypeVar("T")
R = TypeVar("R")

#: Games that are worked on alone, one after the other. The one between shows the storage's latency: the slowest may have made
#: connections, the fastest may have had nothing to do.
MEASURED = 3

#: Of so few games one alone is enough, if it took so long: then it waited for the storage.
FEW, SLOW_S = 16, 0.03

#: Processor time of one game's work: while one game waits for the storage, one thread may work on so many others.
WORK_S = 0.002

#: Threads at least and at most. On a local disk nothing waits: more threads only take turns.
FEWEST_THREADS, MOST_THREADS = 1, 64

#: Times games are planned again (concurrent writers, games ahead of the low watermark) before a run fails.
GAME_ATTEMPTS = 10


@dataclass
class Committed:
    """Outcomes by game: visible commits, games to plan again (a concurrent writer was first), why nothing was committed."""

    landed: dict[str, Landed] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


def for_games(games: Iterable[str], read: Callable[[str], T]) -> dict[str, T]:
    """Results of a function for every game, in parallel, in the order of the games."""
    names = list(games)
    return dict(zip(names, in_threads(names, read), strict=True))


def guarded(read: Callable[[str], T]) -> Callable[[str], T | str]:
    """The function with errors of one game's table as a text: they fail this game, not the run."""

    def reading(game: str) -> T | str:
        try:
            return read(game)
        except (GameEventsError, DeltaError, OSError) as error:
            return str(error)

    return reading


def in_threads(items: Iterable[T], work: Callable[[T], R]) -> list[R]:
    """Results of a function for every item, in their order; the first items decide how many threads the others get."""
    return list(ahead(items, work))


def ahead(items: Iterable[T], work: Callable[[T], R]) -> Iterator[R]:
    """As `in_threads`, with no more than a few results for each thread in memory before they are taken."""
    waiting = iter(items)
    seconds: list[float] = []
    alone = 1 if isinstance(items, Sized) and len(items) <= FEW else MEASURED
    for item in islice(waiting, alone):
        began = time.monotonic()
        result = work(item)
        seconds.append(time.monotonic() - began)
        yield result
    threads = threads_for(median(seconds)) if len(seconds) == alone else FEWEST_THREADS
    if threads == FEWEST_THREADS or (alone == 1 and seconds[0] < SLOW_S):
        yield from map(work, waiting)
    else:
        yield from _in_pool(waiting, work, threads)


def _in_pool(waiting: Iterator[T], work: Callable[[T], R], threads: int) -> Iterator[R]:
    with ThreadPoolExecutor(threads) as pool:
        # One more for each thread: while the oldest is waited for, no thread has nothing to do.
        under_way = deque(pool.submit(work, item) for item in islice(waiting, 2 * threads))
        try:
            while under_way:
                result = under_way.popleft().result()
                under_way += (pool.submit(work, item) for item in islice(waiting, 1))
                yield result
        finally:  # after an error, or if the caller takes no more results
            for one in under_way:
                one.cancel()


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The items; while the caller works on one, a thread makes the next one, which waits in memory."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item


def threads_for(latency_s: float) -> int:
    """Number of threads in which work of that duration, most of it waiting, keeps one processor busy; within bounds."""
    return max(FEWEST_THREADS, min(MOST_THREADS, round(latency_s / WORK_S)))


def opened(
    games: Iterable[str], table: Callable[[str], Table], take: Callable[[Table], DeltaTable | None] = Table.open_to_read
) -> dict[str, DeltaTable]:
    """Game -> handle, of its tables that exist; `take`: how a table is opened. A table with parts is opened once for all."""
    wholes: dict[str, DeltaTable | None] = {}

    def one(game: str) -> DeltaTable | None:
        wanted = table(game)
        if wanted.part is None:
            return take(wanted)
        if wanted.uri not in wholes:
            wholes[wanted.uri] = take(wanted.whole)
        whole = wholes[wanted.uri]
        return whole.part(game) if isinstance(whole, PartedTable) else None

    handles = for_games(games, one)
    return {game: handle for game, handle in handles.items() if handle is not None}


def commit_games(
    plans: Mapping[str, Callable[[], Commit | None]], failpoint: str, settings: Settings, of: str = ""
) -> Committed:
    """Commit every game's plan; plans for parts of one table in one commit.

    `plans`: game -> function that opens the table and makes the plan on that handle; None: to be planned again. `failpoint` is
    reached after each commit, with the number of games committed so far; `of` is the prefix of that number.
    """
    outcome = Committed()
    parts = dict[str, Commit]()
    done = count(1)

    def landed(game: str, commit_of_it: Landed) -> None:
        outcome.landed[game] = commit_of_it
        failpoints.reach(failpoint, f"{of}{next(done)}")

    def lost(game: str, error: Exception) -> None:
        why = without_secrets(str(error), settings)
        if isinstance(error, ConflictError):
            log.info("game=%s conflict=%r planned_again=true", game, why)
            outcome.again.add(game)
        else:
            outcome.failed[game] = why
            log.error("game=%s commit_failed=%r", game, why)

    def one(item: tuple[str, Callable[[], Commit | None]]) -> None:
        game, make = item
        try:
            plan = make()
            if plan is None:
                outcome.again.add(game)
            elif plan.table.part is not None:
                parts[game] = plan
            else:
                landed(game, commit(plan))
        except (GameEventsError, DeltaError, OSError) as error:
            lost(game, error)

    in_threads(plans.items(), one)
    for game, result in (commit_group(parts) if parts else {}).items():
        if isinstance(result, Landed):
            landed(game, result)
        else:
            lost(game, result)
    return outcome
