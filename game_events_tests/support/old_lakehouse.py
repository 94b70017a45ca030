"""Write a small lakehouse with the commands of another version, as a zip for the tests.

    cd CHECKOUT_OF_THE_OLD_VERSION && make setup && .venv/bin/python THIS_FILE OUT.zip

No broker is needed: the records are in files. The commands are those of the version that is installed beside that Python: this
module imports nothing of `game_events`. Commit a9b4bae5, whose tables have format 1, wrote data/old_lakehouse.zip.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro

GAMES = ("chess", "rummy", "uno")
START = datetime(2026, 11, 1, tzinfo=UTC)
#: From these numbers on, events have one more field each: `note`, and in records that the old version has not seen, `score`.
NOTES_FROM, SCORES_FROM = 48, 60
#: Events up to this number are exported; calls with rows of this game have failed.
EXPORTED_TO, NOT_TAKEN = 56, "chess"
#: The event that the rule rejects, and the gamer that `forget` erases.
REJECTED, FORGOTTEN = 13, "g4"
RULES = [{"name": "n_known", "sql": f"n <> {REJECTED}", "action": "quarantine"}]
ERASURE_KEY = "an erasure key that is only for tests"
FIELDS: list[dict[str, Any]] = [
    {"name": "game_name", "type": "string"},
    {"name": "gamer_id", "type": "string"},
    {"name": "n", "type": "long"},
    {"name": "event_timestamp", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]
NOTE = {"name": "note", "type": "string"}
SCORE = {"name": "score", "type": "double"}


def event(n: int) -> dict[str, Any]:
    """The event of a number."""
    known = {"game_name": GAMES[n % 3], "gamer_id": f"g{n % 5}", "n": n, "event_timestamp": START + timedelta(seconds=n)}
    note = {"note": f"note {n}"} if n >= NOTES_FROM else {}
    return known | note | ({"score": n / 4} if n >= SCORES_FROM else {})


def container(numbers: range) -> bytes:
    """An Avro file of events of one schema version."""
    out = io.BytesIO()
    fields = [*FIELDS, *[NOTE][: numbers.start >= NOTES_FROM], *[SCORE][: numbers.start >= SCORES_FROM]]
    schema = {"type": "record", "name": "Event", "namespace": "shop", "fields": fields}
    fastavro.writer(out, schema, [event(n) for n in numbers])
    return out.getvalue()


def put(folder: Path, name: str, body: bytes) -> None:
    """A file that nothing has written for a minute."""
    (folder / name).write_bytes(body)
    then = time.time() - 60
    os.utime(folder / name, (then, then))


class Receiver(BaseHTTPRequestHandler):
    """Takes rows of all games but one."""

    def do_OPTIONS(self) -> None:
        """Answer the call before the first rows."""
        self._answer(204)

    def do_POST(self) -> None:
        """Refuse a game's rows, as if they were none."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(422 if NOT_TAKEN.encode() in body else 204)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main(out: Path) -> None:
    """Run, compact, refresh all fully, erase a gamer, redecode, export, archive, run again; and pack the tables."""
    with tempfile.TemporaryDirectory() as name, ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = Path(name)
        landing = place / "landing"
        landing.mkdir()
        environment = os.environ | {
            "DAGSTER_HOME": str(place / "dagster"),
            "GAME_EVENTS_SOURCE": "files",
            "GAME_EVENTS_FILES_PATH": str(landing),
            "GAME_EVENTS_FILES_SETTLE_S": "1",
            "GAME_EVENTS_FILES_PER_BATCH": "1",
            "GAME_EVENTS_LAKEHOUSE": str(place / "lakehouse"),
            "GAME_EVENTS_STATE_DIR": str(place / "state"),
            "GAME_EVENTS_SPARK_MASTER": "local[2]",
            "GAME_EVENTS_RULES": json.dumps(RULES),
            "GAME_EVENTS_ERASURE_KEY": ERASURE_KEY,
            "GAME_EVENTS_ALLOW_BRONZE_FULL_REFRESH": "true",
            "GAME_EVENTS_REST_URL": f"http://127.0.0.1:{server.server_port}/",
        }

        def command(*arguments: str) -> None:
            game_events = Path(sys.executable).parent / "game-events"
            done = subprocess.run([game_events, *arguments], env=environment, cwd=place, check=False)
            if done.returncode:
                raise SystemExit(f"game-events {' '.join(arguments)}: exit code {done.returncode}")

        # One commit a file: enough small files for a compaction.
        for first in range(0, NOTES_FROM, 4):
            put(landing, f"{first:03}.avro", container(range(first, first + 4)))
        command("run")
        # Cut off: a row of quarantine.
        put(landing, "broken.avro", container(range(4))[:-20])
        put(landing, "second.avro", container(range(NOTES_FROM, EXPORTED_TO)))
        command("run")
        command("maintain")
        command("run", "--full-refresh", "bronze,silver,gold,unified")
        command("run", "--full-refresh", "silver")
        command("forget", "--gamer-id", FORGOTTEN)
        command("redecode")
        command("rest", "run")
        command("archive", "--to", str(place / "archive"))
        put(landing, "third.avro", container(range(EXPORTED_TO, SCORES_FROM)))
        command("run")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for path in sorted(path for made in ("lakehouse", "archive") for path in (place / made).rglob("*")):
                if path.is_file():
                    packed.write(path, path.relative_to(place))
        server.shutdown()
    sys.stdout.write(f"{out}: {out.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
