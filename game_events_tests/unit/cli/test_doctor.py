"""What `doctor` says of the Dagster instance: its `dagster.yaml` is read, Dagster itself is not needed."""

import subprocess
import sys

import pytest
import yaml

from game_events.cli.dagster_run import dagster_file
from game_events.cli.run import NO_LOGGER, NO_MONITORING, NO_POOLS, check_instance
from game_events.pipeline.runs.preflight import Hint

OWN = dagster_file("dagster.yaml").read_text()


def test_the_projects_own_instance_lacks_nothing(tmp_path):
    (tmp_path / "dagster.yaml").write_text(OWN)
    said = check_instance(tmp_path)
    assert not isinstance(said, Hint)
    assert str(tmp_path) in said


@pytest.mark.parametrize(
    ("part", "lack"), [("concurrency", NO_POOLS), ("run_monitoring", NO_MONITORING), ("python_logs", NO_LOGGER)]
)
def test_what_an_instance_lacks_is_named(tmp_path, part, lack):
    config = yaml.safe_load(OWN)
    del config[part]
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(config))
    said = check_instance(tmp_path)
    assert isinstance(said, Hint)
    assert lack in said
    assert sum(known in said for known in (NO_POOLS, NO_MONITORING, NO_LOGGER)) == 1


@pytest.mark.parametrize("text", [None, "", "# nothing", "storage: {sqlite: {base_dir: here}}"])
def test_an_instance_with_dagsters_defaults_lacks_all_of_it(tmp_path, text):
    (tmp_path / "history").mkdir()
    if text is not None:
        (tmp_path / "dagster.yaml").write_text(text)
    said = check_instance(tmp_path)
    assert [known for known in (NO_POOLS, NO_MONITORING, NO_LOGGER) if known not in said] == []


def test_all_loggers_are_this_one_too_and_the_older_name_of_the_limit_counts(tmp_path):
    (tmp_path / "dagster.yaml").write_text(
        "concurrency: {default_op_concurrency_limit: 1}\n"
        "run_monitoring: {enabled: true}\n"
        "python_logs: {managed_python_loggers: [root]}\n"
    )
    assert not isinstance(check_instance(tmp_path), Hint)


def test_an_instance_that_is_not_made_yet_lacks_nothing(tmp_path):
    assert not isinstance(check_instance(tmp_path / "none"), Hint)
    assert not (tmp_path / "none").exists()


def test_the_check_does_not_wait_for_dagster():
    code = "import sys; import game_events.cli.run; sys.exit('dagster' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
