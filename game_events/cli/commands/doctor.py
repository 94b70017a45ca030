"""`game-events doctor`: checks everything a run needs, and says what to do about what is missing."""

from game_events.cli.common.arguments import Json
from game_events.cli.common.checks import show_checks
from game_events.cli.common.dagster_home import find_dagster_home
from game_events.cli.common.instance_check import check_instance
from game_events.cli.common.output import Output
from game_events.cli.common.spark import spark_session
from game_events.config.settings import load_settings
from game_events.pipeline.context import Pipeline
from game_events.pipeline.runs.preflight import Check
from game_events.pipeline.runs.state_checks import state_checks, validation


def doctor(as_json: Json = False) -> None:
    """Check Java, the Java parts, Kafka, the registry, the lakehouse; exit code 1 if one fails. Then how the tables stand."""
    output = Output(as_json=as_json)
    settings = load_settings()
    pipeline = Pipeline(settings, spark_session)
    instance: dict[str, Check] = {"dagster": lambda: check_instance(find_dagster_home(settings))}
    show_checks(output, "doctor", validation(pipeline, instance | state_checks(pipeline)))
