"""Where each event may be, by what has happened to it: computed from what was written, never from the code under test.

Mostly there is one possibility. There are several if a run was killed, so that it is not known how far it came, and the rules
or the user's module have changed before the next one; the next look at the tables leaves one again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from game_events_tests.scenarios.fuzz.declared import (
    DROPPED,
    EXTENSIONS,
    GAMES,
    HELD,
    KEPT,
    LONG_AGO,
    Event,
    verdict,
    without_rejecting,
)

#: Where an event is, and the number of the module whose transformations its rows in silver have.
Outcome = tuple[str, int]
#: Shorter ids are not searched for in the bytes of records that do not decode (docs/erasure.md).
SEARCHED_BYTES = 4
NO, MAYBE, YES = "no", "maybe", "yes"


@dataclass(frozen=True)
class Config:
    """What decides about rows of silver: numbers of `RULES` and `EXTENSIONS`."""

    rules: int
    extension: int


@dataclass
class Fate:
    """What may have become of one event.

    Attributes:
        outcomes: of an event of a game; empty: no run can have come to it.
        configs: of the runs that may have decided about it before it was settled.
        settled: a look at the tables has found it.
        gone: its person was erased, and it with it.
        sure: columns of `event.extra` that silver must have; of the others it may.
    """

    event: Event
    outcomes: set[Outcome] = field(default_factory=set)
    configs: set[Config] = field(default_factory=set)
    settled: bool = False
    gone: str = NO
    sure: frozenset[str] = frozenset()

    def decided(self, config: Config) -> None:
        """A run may have decided about it."""
        found = {verdict(config.rules, self.event)}
        if self.configs - {config}:
            found.add(without_rejecting(config.rules, self.event))  # quarantine's part may be another run's
        self.configs.add(config)
        self.outcomes |= {(place, config.extension) for place in found if place is not None}

    def rebuilt(self, config: Config) -> None:
        """Its silver table may have been made again from the recorded decisions: who was rejected stays so."""
        found = {verdict(config.rules, self.event), without_rejecting(config.rules, self.event)}
        self.outcomes |= {(place, config.extension) for place in found if place is not None}

    def decided_again(self, config: Config) -> None:
        """It was surely decided about again; a row that is held stays held if it would only be dropped now."""
        found = verdict(config.rules, self.event)
        before: set[str | None] = {place for place, _ in self.outcomes}
        places = {HELD if place == HELD and found == DROPPED else found for place in before or {found}}
        self.outcomes = {(place, config.extension) for place in places if place is not None}


class Truth:
    """All events of a world."""

    def __init__(self) -> None:
        self.fates: dict[str, Fate] = {}
        self.erased: set[str] = set()
        #: Games with tables that are not whole: a run makes them again.
        self.broken: set[str] = set()
        #: Games of which silver may lack rows by their age, and gold may have such rows.
        self.expiring: set[str] = set()

    def sent(self, events: Iterable[Event], sure: Collection[str]) -> None:
        """Events were written."""
        for event in events:
            self.fates[event.rid] = Fate(event, sure=frozenset(sure) & event.extra.keys())

    @property
    def live(self) -> Mapping[str, Fate]:
        """Those that are not erased for sure."""
        return {rid: fate for rid, fate in self.fates.items() if not self.is_gone(fate)}

    def is_gone(self, fate: Fate) -> bool:
        """Whether it must be nowhere."""
        return fate.gone == YES or (not fate.event.damaged and fate.event.gamer in self.erased)

    def may_be_expired(self, fate: Fate) -> bool:
        """Whether silver may lack it as it is too old."""
        event = fate.event
        return event.game in self.expiring and event.at is not None and event.at < LONG_AGO

    def _of(self, games: Collection[str]) -> Sequence[Fate]:
        return [fate for fate in self.fates.values() if fate.event.game in games and not fate.event.damaged]

    def run(self, config: Config) -> None:
        """A run has taken some of what was not in its place."""
        for fate in self._of(GAMES):
            if not fate.settled:
                fate.decided(config)
            if fate.event.game in self.broken:
                fate.rebuilt(config)

    def decided_again(self, games: Collection[str], config: Config, *, surely: bool) -> None:
        """Silver of games was made again under the rules in force; or that was begun."""
        if not surely:
            self.broken |= set(games)
            self.run(config)
            return
        self.broken -= set(games)
        for fate in self._of(games):
            fate.decided_again(config)

    def replayed(self, config: Config, *, surely: bool) -> None:
        """Games with rows that rules kept out were decided about again; the others as in any run."""
        if not surely:
            self.decided_again(GAMES, config, surely=False)
            return
        live = {game: [fate for fate in self._of([game]) if not self.is_gone(fate)] for game in GAMES}
        out = {game for game, fates in live.items() if any(fate.settled and self._is_out(fate) for fate in fates)}
        perhaps = {game for game, fates in live.items() if any(self._may_be_out(fate) for fate in fates)}
        self.decided_again(perhaps - out, config, surely=False)
        for fate in self._of(out):
            if fate.settled:
                fate.decided_again(config)

    @staticmethod
    def _is_out(fate: Fate) -> bool:
        return all(place in (HELD, DROPPED) for place, _ in fate.outcomes)

    @staticmethod
    def _may_be_out(fate: Fate) -> bool:
        return any(place in (HELD, DROPPED) for place, _ in fate.outcomes)

    def forgotten(self, gamer: str) -> None:
        """A person was erased; of records that do not decode those that were read before."""
        self.erased.add(gamer)
        if len(gamer.encode()) < SEARCHED_BYTES:
            return
        for fate in self.fates.values():
            if fate.event.damaged and fate.event.gamer == gamer and fate.gone == NO:
                fate.gone = YES if fate.settled else MAYBE

    def redecoded(self, columns: Collection[str], kinds: Collection[str]) -> None:
        """Bronze's records of these kinds, and all of silver, have these columns."""
        for fate in self.fates.values():
            if fate.settled and fate.event.kind in kinds:
                fate.sure |= frozenset(columns) & fate.event.extra.keys()


def kept_outcomes(fate: Fate) -> set[Outcome]:
    """The outcomes with which silver has had it."""
    return {outcome for outcome in fate.outcomes if outcome[0] == KEPT}


def rows_of(event: Event, outcome: Outcome) -> list[dict[str, object]]:
    """What silver has of an event then, besides the event's own columns."""
    place, extension = outcome
    return EXTENSIONS[extension].of(event) if place not in (HELD, DROPPED) else []
