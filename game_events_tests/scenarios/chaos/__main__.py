"""`python -m game_events_tests.scenarios.chaos`: the full chaos run, its report printed and saved."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from game_events_tests.scenarios.chaos.chaos_run import chaos


def main() -> int:
    """Exit code 0 if every invariant holds; the folder with tables and logs stays if one does not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1_500.0, help="records per second of a wave that is no burst")
    parser.add_argument("--report", type=Path, default=Path("chaos-results"), help="folder for JSON and Markdown")
    parser.add_argument("--folder", type=Path, help="where everything lives; by default a temporary folder")
    parser.add_argument("--kinds", help="what to kill, comma separated, instead of a number")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="game_events_chaos_"))
    folder.mkdir(parents=True, exist_ok=True)
    kinds = given.kinds.split(",") if given.kinds else given.kills
    kept = True
    try:
        account = chaos(folder, seed=given.seed, kinds=kinds, rate=given.rate, say=lambda line: print(line, flush=True))
        account.save(given.report)
        print(account.to_markdown())
        kept = not account.sound
    finally:
        if kept:
            print(f"tables and logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return int(kept)


if __name__ == "__main__":
    sys.exit(main())
