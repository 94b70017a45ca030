"""`game-events doctor`: checks everything a run needs, and says what to do about what is missing."""

from game_events.cli.common.arguments import Json
from game_events.cli.common.output import Output
from game_events.config.background import begin_call
from game_events.decoding import compiler_child
from game_events.jvm.java import find_java


def doctor(as_json: Json = False) -> None:
    """Check Java, the Java parts, Kafka, the registry, the lakehouse; exit code 1 if one fails. Then how the tables stand."""
    # Two other processes take a while to start: they do it while the checks are imported.
    compiler_child.CHILD.begin()
    begin_call(find_java, "java")
    from game_events.cli.common.checks import check_all

    check_all(Output(as_json=as_json))
