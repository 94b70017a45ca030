"""Work of this process alone, in short turns: what slows the machine down for a second slows each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from benchmarks.arena import Arena
from benchmarks.figures import Step


def in_turns(arena: Arena, pair: int, works: Mapping[str, Callable[[int], object]], rounds: int, messages: int) -> None:
    """Note one step for each work. Nothing looks at memory meanwhile, which would take some of the time.

    Args:
        arena: where the steps go.
        pair: number of the repetition.
        works: name -> one turn; called with the number of the round.
        rounds: turns of each.
        messages: of one turn.
    """
    wall, processor = dict.fromkeys(works, 0.0), dict.fromkeys(works, 0.0)
    for number in range(rounds):
        for name, work in works.items():
            began, spent = time.perf_counter(), time.process_time()
            work(number)
            wall[name] += time.perf_counter() - began
            processor[name] += time.process_time() - spent
    for name in works:
        arena.add(Step(name, 0, pair, rounds * messages, wall[name], 0, processor[name]))
