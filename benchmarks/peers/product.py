"""This project as the peers run: a process of its own with a warm Spark session; a line of JSON is a refresh.

`python -m benchmarks.peers.product FOLDER`, then lines of JSON in and out (`process.py`). A request has `layout`, and
may have `settings`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.arena import make_spark, settings_for
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.refresh import refresh


def main(folder: Path) -> None:
    """Each refresh has new parts, as a run of its own has them; only the session is shared, which the first one makes."""
    sessions = list[SparkSession]()
    for line in sys.stdin:
        request = json.loads(line)
        plain = settings_for(folder, request["topic"], Path(request["root"]))
        own = {"silver_layout": request["layout"]} | request.get("settings", {})
        settings = type(plain).model_validate(plain.model_dump() | own)
        if not sessions:
            sessions.append(make_spark(settings))
        report = refresh(Pipeline(settings, lambda: sessions[0]))
        assert report.success, report.errors
        print(json.dumps({"records": report.rows("silver"), "steps": report.seconds}), flush=True)
    for session in sessions:
        session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
