"""The whole graph against what a user would write with plain Spark, and in Python without Spark, in turns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.arena import Arena
from benchmarks.baseline.client import Baseline, baseline
from benchmarks.figures import Figure, Step, Target, ratio
from benchmarks.layers import reference_to_nothing, whole_topic
from benchmarks.memory import peak_of
from game_events.pipeline.reporting.report import RunReport
from game_events.pipeline.runs.refresh import refresh
from game_events.producer.message_type import BUILT_IN

OURS, SOURCE, BASELINE, PYTHON = "whole graph", "Kafka source alone", "baseline", "Python consumer"
#: Games -> the baseline's time, and the source's rate, by the whole graph's.
AGAINST_BASELINE = {10: Target(">=", 8), 100: Target(">=", 50)}
AGAINST_SOURCE = {10: Target(">=", 0.33), 100: Target(">=", 0.3), 1_000: Target(">=", 0.2)}
PEER = Path(__file__).with_name("python_peer.py")
#: Games that the baseline really does; the time of the others is extrapolated, and said to be.
SAMPLE = 10


def graph(arena: Arena) -> list[Figure]:
    """Kafka to bronze, silver, gold and the unified table, on a new lakehouse each time.

    One round of each is left out: the virtual machines compile what they run often.
    """
    with baseline(arena) as plain:
        for pair in range(-1, arena.pairs):
            for games in AGAINST_SOURCE:
                _source(arena, pair, games)
                _ours(arena, pair, games)
                if games in AGAINST_BASELINE:
                    _plain(arena, plain, pair, games)
                    _python(arena, plain, pair, games)
    measured, figures = arena.measured, list[Figure]()
    for games, target in AGAINST_SOURCE.items():
        figures += [measured.rate(OURS, games), measured.rate(SOURCE, games)]
        ours, source = measured.seconds([OURS], games), measured.seconds([SOURCE], games)
        figures.append(ratio(f"whole graph's rate / the Kafka source's, {games:,} games", source, ours, target))
    for games, target in AGAINST_BASELINE.items():
        figures += [measured.rate(name, games) for name in (BASELINE, PYTHON)]
        ours, plain_s, python = (measured.seconds([name], games) for name in (OURS, BASELINE, PYTHON))
        note = measured.of(BASELINE, games)[0].note
        figures.append(ratio(f"baseline's time / the whole graph's, {games:,} games", plain_s, ours, target, note))
        figures.append(ratio(f"Python consumer's time / the whole graph's, {games:,} games", python, ours))
    return figures


def _source(arena: Arena, pair: int, games: int) -> None:
    with arena.lakehouse() as root:
        pipeline = arena.pipeline(arena.topic(games), root)
        arena.timed(SOURCE, games, pair, lambda: reference_to_nothing(pipeline))


def _ours(arena: Arena, pair: int, games: int) -> None:
    topic = arena.topic(games)
    reports: list[RunReport] = []
    with arena.lakehouse() as root:
        pipeline = arena.pipeline(topic, root)
        arena.timed(OURS, games, pair, lambda: reports.append(refresh(pipeline)))
    assert reports[0].success, reports[0].errors
    assert reports[0].rows("silver") == arena.events, f"silver has {reports[0].rows('silver')} of {arena.events} rows"


def _plain(arena: Arena, plain: Baseline, pair: int, games: int) -> None:
    with arena.lakehouse() as root:
        part = whole_topic(arena.pipeline(arena.topic(games), root))
        names = [f"game_{number:04d}" for number in range(1, games + 1)]
        sample = names[:: max(1, games // SAMPLE)]
        with peak_of(plain.pid) as peak:
            result = plain.run(part, sample, root)
    assert result.bronze_rows == arena.events, f"the baseline's bronze has {result.bronze_rows} of {arena.events} rows"
    seconds = result.bronze_s + result.games_s * games / len(sample)
    whole = len(sample) == games
    note = "" if whole else f"{len(sample)} of {games} games done, time (not memory, processor) of the rest extrapolated"
    arena.add(Step(BASELINE, games, pair, arena.events, seconds, peak.mib, peak.cpu_s, note))


def _python(arena: Arena, plain: Baseline, pair: int, games: int) -> None:
    with arena.lakehouse() as root:
        part = whole_topic(arena.pipeline(arena.topic(games), root))
        edges = {"start": part.start, "end": part.end}
        request = {name: {p.partition: offset for p, offset in offsets.items()} for name, offsets in edges.items()} | {
            "servers": plain.servers,
            "topic": arena.topic(games),
            "descriptor": str(plain.descriptor),
            "message": BUILT_IN.message_name,
            "root": str(root),
        }
        command = [sys.executable, str(PEER), json.dumps(request)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            arena.foreign.add(process.pid)
            with peak_of(process.pid) as peak:
                answer, _ = process.communicate()
        assert process.returncode == 0, f"the Python consumer ended with {process.returncode}"
    result = json.loads(answer)
    assert result["rows"] == arena.events, f"the Python consumer has {result['rows']} of {arena.events} rows"
    # Without the start of its process, as the others are warm.
    seconds = result["bronze_s"] + result["games_s"]
    arena.add(Step(PYTHON, games, pair, arena.events, seconds, peak.mib, peak.cpu_s))
