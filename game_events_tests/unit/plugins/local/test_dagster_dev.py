"""What `game-events up` leaves out of Dagster's own lines."""

import inspect
import logging

import pytest
from dagster._cli import dev

from game_events.plugins.local.webserver import is_news

ABOUT_THE_FILE = "Found a dagster instance configuration value (dagster.yaml) in the current folder, but your DAGSTER_HOME ..."


@pytest.mark.parametrize(("said", "shown"), [(ABOUT_THE_FILE, False), ("Code location game_events failed to load", True)])
def test_the_projects_own_dagster_yaml_is_no_warning(said, shown):
    assert is_news(logging.LogRecord("dagster", logging.WARNING, __file__, 1, said, None, None)) is shown


def test_that_is_what_dagster_says():
    assert ABOUT_THE_FILE.partition(" (")[0] in inspect.getsource(dev)
