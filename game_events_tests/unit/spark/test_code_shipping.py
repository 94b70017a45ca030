"""This project's code as executors on other machines have it: an archive that a relative path names."""

import os
import shutil
import subprocess
import sys

import pytest

from game_events.spark.config import packed

#: Modules with what workers unpickle.
MODULES = ("decode", "fanout", "job", "rows", "rules")


@pytest.mark.parametrize("module", MODULES)
def test_what_workers_unpickle_can_be_imported_from_the_archive(module, tmp_path):
    shutil.copy(packed(), tmp_path / "code.zip")
    code = f"import game_events.workers.{module} as found; print(found.__file__)"
    # The archive comes before the package that is installed beside the libraries.
    environment = os.environ | {"PYTHONPATH": "./code.zip"}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "code.zip" in ran.stdout
