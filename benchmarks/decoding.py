"""The decoder: how it copes with many schema versions at a time, with bad rows, and with nested messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.arena import Arena
from benchmarks.bad_rows import bad_rows
from benchmarks.figures import Figure, Target, ratio
from benchmarks.messages import arrow, compiled, decoder_for, event, values, version_text
from benchmarks.mutations import mutations
from benchmarks.nested import nested
from benchmarks.turns import in_turns
from game_events.sources.source import BATCH_RECORDS

#: Messages of one batch, as readers give them, and batches of distinct ones.
BATCH, BATCHES = BATCH_RECORDS, 2
#: Batches of each mix at least: fewer are a fraction of a second.
LEAST = 30
#: How many custom columns the versions of a mix have: always 10 on average, so that only the number of versions counts.
MIXES = {1: (10,), 3: (9, 10, 11), 20: (*range(10), *range(11, 21))}
SHARE = Target(">=", 0.8)


def decoding(arena: Arena) -> list[Figure]:
    """All parts."""
    return [*versions(arena), *mutations(arena), *bad_rows(arena), *nested(arena)]


def versions(arena: Arena) -> list[Figure]:
    """The decoder alone, in this process: 1, 3 and 20 schema ids mixed evenly, batch by batch in turns."""
    arena.say("decoding batches of 1, 3 and 20 schema versions")
    turns = {_name(count): _turn(columns) for count, columns in MIXES.items()}
    for pair in range(arena.pairs):
        in_turns(arena, pair, turns, max(LEAST, arena.events // BATCH), BATCH)
    rates = {count: [step.rate for step in arena.measured.of(_name(count), 0)] for count in MIXES}
    note = f"{BATCH:,} values in a batch; the versions have 10 custom columns (230 bytes) on average"
    return [
        *(arena.measured.rate(_name(count), 0) for count in MIXES),
        *(ratio(f"decode rate, {n} schema versions / 1", rates[n], rates[1], SHARE, note) for n in MIXES if n > 1),
    ]


def _turn(columns: tuple[int, ...]) -> Callable[[int], object]:
    """Decodes one batch of versions with so many custom columns."""
    schemas = compiled([version_text(number) for number in columns])
    made = values(schemas, partial(event, custom=max(columns)), BATCH * BATCHES)
    batches = [arrow(made[start : start + BATCH]) for start in range(0, len(made), BATCH)]
    decoder = decoder_for(schemas)
    rows = sum(len(good) for batch in batches for good, _, _, _ in decoder.decode(batch).good)
    assert rows == len(made), f"{rows} of {len(made)} messages were decoded"
    return lambda number: decoder.decode(batches[number % BATCHES])


def _name(count: int) -> str:
    return f"decoder alone, {count} schema version{'s' if count > 1 else ''} in a batch"
