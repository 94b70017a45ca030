"""A lakehouse in an object store that answers after 50 ms, beside one that answers at once, in turns.

The store is the tests' own, on this machine: it costs processor time of its own, so compare the two, not with a local disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.arena import WARM_EVENTS, Arena, settings_for
from benchmarks.figures import Figure, ratio
from benchmarks.peers.process import peer_process
from benchmarks.peers.running import OURS, PEERS, Peer, Work, command_of, measured, request_of
from game_events.lakehouse.storage import delta_options
from game_events_tests.support.servers.object_store import BUCKET, KEY, SECRET, ObjectStore

GAMES, RECORDS = 10, 1_000
#: Milliseconds that each request waits.
WAITS_MS = (0, 50)
TOPIC = "bench_object_store"


@dataclass(frozen=True)
class Place:
    """A store, and a peer whose session knows it."""

    store: ObjectStore
    peer: Peer

    def settings(self, root: str) -> dict[str, object]:
        """Of a request for a lakehouse there."""
        return {"lakehouse": f"s3://{BUCKET}/{root}", "storage_endpoint": self.store.endpoint}


def object_store(arena: Arena) -> list[Figure]:
    """One first load on each, then increments; requests of the store are counted."""
    requests: dict[str, list[float]] = {}
    total = min(WARM_EVENTS, arena.events)
    arena.produce(TOPIC, total, GAMES)
    with _place(arena) as place:
        for pair in range(-1, arena.pairs):
            for wait in WAITS_MS:
                requests.setdefault(_step("first load", wait), []).append(_load(arena, place, wait, f"new-{pair}", pair, total))
        for pair in range(-2, arena.pairs):
            for wait in WAITS_MS:
                if pair == -2:
                    _load(arena, place, wait, "kept", -1, total)
                    continue
                if wait == WAITS_MS[0]:
                    arena.produce(TOPIC, RECORDS, GAMES, seed=1_000 + pair)
                    total += RECORDS
                requests.setdefault(_step("increment", wait), []).append(_load(arena, place, wait, "kept", pair, RECORDS))
        for wait in WAITS_MS:
            _require(arena, place, f"kept-{wait}", total)
    figures = list[Figure]()
    for what in ("first load", "increment"):
        quick, slow = (arena.measured.seconds([_step(what, wait)], GAMES) for wait in WAITS_MS)
        for wait, seconds in zip(WAITS_MS, (quick, slow), strict=True):
            asked = requests[_step(what, wait)][-1]
            figures.append(Figure(_step(what, wait), "s", seconds, note=f"{asked:,.0f} requests of the store"))
        figures.append(ratio(f"{what}: {WAITS_MS[1]} ms a request / {WAITS_MS[0]} ms", slow, quick))
    return figures


def _step(what: str, wait: int) -> str:
    return f"{what}, {wait} ms a request"


def _load(arena: Arena, place: Place, wait: int, root: str, pair: int, new: int) -> float:
    """One refresh; returns the number of requests."""
    place.store.tell(f"wait {wait}")
    before = int(place.store.tell("requests"))
    what = "increment" if new == RECORDS else "first load"
    more: dict[str, object] = {"settings": place.settings(f"{root}-{wait}")}
    measured(arena, place.peer, _step(what, wait), Work(TOPIC, arena.folder / "unused", new, GAMES, pair, more))
    return int(place.store.tell("requests")) - before


def _require(arena: Arena, place: Place, root: str, total: int) -> None:
    """Every event is in silver."""
    place.store.tell("wait 0")
    plain = settings_for(arena.folder, TOPIC, Path("unused"))
    options = delta_options(plain.model_copy(update=place.settings(root)))
    rows = 0
    for number in range(1, GAMES + 1):
        table = DeltaTable(f"s3://{BUCKET}/{root}/silver_game_{number:04d}_events", storage_options=options)
        rows += sum(table.get_add_actions().column("num_records").to_pylist())
    assert rows == total, f"silver has {rows} of {total} rows"


@contextmanager
def _place(arena: Arena) -> Iterator[Place]:
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    store = ObjectStore.start()
    try:
        command = command_of("product", arena)
        assert command is not None
        with peer_process(command, arena.folder, "product-in-store") as process:
            arena.foreign.add(process.pid)
            yield Place(store, Peer(OURS, PEERS[OURS], process, request_of(arena)))
    finally:
        store.stop()
