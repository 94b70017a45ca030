"""Settings of the Spark server in a file of Java properties."""

import pytest

from game_events.plugins.local.servers.connect_server import _escaped


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("\b", "\\u0008"),
        ("\\b", "\\\\b"),
        ('a"b', 'a"b'),
        ('\\"', '\\\\"'),
        (" x", "\\ x"),
        ("\n\\n", "\\n\\\\n"),
        ("€😀", "\\u20ac\\ud83d\\ude00"),
    ],
)
def test_a_value_has_the_escapes_that_java_reads(value, written):
    assert _escaped(value) == written
