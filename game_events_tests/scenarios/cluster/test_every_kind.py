"""The pipeline on a standalone cluster (two workers) and over Spark Connect: the same tests, a process for each kind.

The cluster is started with the commands of docs/cluster.md, at free ports and in folders of the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from game_events_tests.support.servers.spark_kinds import CONNECT, KIND, LOCAL, STANDALONE

ROOT = Path(__file__).parents[3]
#: Files that have tests with the mark; to look at the others takes longer.
WHERE = [f"game_events_tests/integration/pipeline/test_{name}.py" for name in ("refresh", "replay", "loop")]
WHERE += [
    "game_events_tests/integration/pipeline/test_crashed_jobs.py",
    "game_events_tests/integration/silver/test_rules.py",
    "game_events_tests/integration/object_store/test_pipeline.py",
]

pytestmark = [
    pytest.mark.skipif(KIND != LOCAL, reason="starts the other kinds itself"),
]


def run_tests(kind, *arguments):
    """Run tests on a kind, with this process's broker and registry; how it ended and what it said."""
    environment = os.environ | {"GAME_EVENTS_TEST_SPARK": kind}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers --strict-config"]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1750, check=False
    )
    return done.returncode, (done.stdout + done.stderr)[-8000:]


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("stack")
@pytest.mark.parametrize("kind", [STANDALONE, CONNECT])
def test_the_pipeline_does_the_same_wherever_spark_runs(kind):
    # What kills servers and leaves jobs behind comes last: other tests' sessions live in its process, too.
    own = [f"game_events_tests/scenarios/cluster/on_{name}.py" for name in ("every_kind", kind)]
    code, said = run_tests(kind, "-m", "every_spark", *WHERE, *own)
    assert code == 0, said
    assert "skipped" not in said
