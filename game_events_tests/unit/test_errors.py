"""What is shown of an error's text."""

import pytest
from py4j.protocol import Py4JError

from game_events.errors import DataError, first_line, some_columns, stop_of


def test_what_a_failed_job_says_is_why_it_failed_and_not_which_call_it_was():
    said = "An error occurred while calling o67.collectToPython.\n: org.apache.spark.SparkException: No space left\n\tat x"
    assert first_line(Py4JError(said)) == "org.apache.spark.SparkException: No space left"
    assert first_line(Py4JError("An error occurred while calling o67")) == "An error occurred while calling o67"
    assert first_line(OSError("disk\nfull")) == "disk"
    assert first_line(OSError()) == "OSError"


def test_of_many_columns_a_message_names_a_few_the_likely_ones_first():
    names = [f"column_{n}" for n in range(200)] + ["game_name"]
    said = some_columns(names, "gamename")
    assert said.startswith("game_name, ")
    assert said.endswith(" and 189 more")
    assert some_columns(["a", "b"]) == "a, b"
    assert some_columns([]) == ""


def raised(error, during):
    """An error that is raised while another one is handled."""
    try:
        try:
            raise during
        except BaseException:  # noqa: BLE001
            raise error  # noqa: B904 - as libraries do
    except BaseException as found:  # noqa: BLE001
        return found


@pytest.mark.parametrize(
    ("error", "stop"),
    [
        (KeyboardInterrupt(), True),
        (SystemExit(1), True),
        (raised(KeyError("p"), KeyboardInterrupt()), True),
        (raised(DataError("away"), SystemExit(1)), True),
        (raised(KeyError("p"), raised(ValueError("x"), KeyboardInterrupt())), True),
        (raised(KeyError("p"), ValueError("x")), False),
        (KeyError("p"), False),
    ],
    ids=repr,
)
def test_a_stop_is_known_whatever_error_comes_of_it(error, stop):
    assert (stop_of(error) is not None) is stop
