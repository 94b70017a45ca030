"""`game-events stack up|down|status`: the local broker and registry."""

from typing import Annotated

import typer

from game_events.cli.output import Json, Output
from game_events.config.settings import load_settings
from game_events.plugins.local.servers import local_stack

app = typer.Typer(help="The local Apache Kafka broker and schema registry.", no_args_is_help=True, add_completion=False)


@app.command()
def up(
    kafka_port: Annotated[int | None, typer.Option(help="Port of the broker; default: a free one.")] = None,
    registry_port: Annotated[int | None, typer.Option(help="Port of the registry; default: a free one.")] = None,
    as_json: Json = False,
) -> None:
    """Start what is not running yet, and print the addresses. Data of earlier runs are there again."""
    output = Output(as_json=as_json)
    state = local_stack.up(load_settings().state_dir, kafka_port, registry_port, on_progress=output.say)
    servers = state.kafka_bootstrap_servers
    url = state.schema_registry_url
    output.say(f"kafka:    {servers}")
    output.say(f"registry: {url}")
    output.result({"running": True, "kafka_bootstrap_servers": servers, "schema_registry_url": url})


@app.command()
def down(
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Also delete topics and schemas.")] = False,
    as_json: Json = False,
) -> None:
    """Stop both; topics and schemas stay for the next start, unless deleted by option."""
    output = Output(as_json=as_json)
    stopped = local_stack.down(load_settings().state_dir, delete_data=delete_data)
    output.say("stopped" if stopped else "nothing was running")
    output.result({"running": False, "stopped": stopped})


@app.command()
def status(as_json: Json = False) -> None:
    """Say what is running; exit code 1 if not everything is."""
    output = Output(as_json=as_json)
    stack = local_stack.status(load_settings().state_dir)
    servers = stack.state.kafka_bootstrap_servers if stack.state else None
    url = stack.state.schema_registry_url if stack.state else None
    output.say(f"kafka:    {servers or '-'} {'running' if stack.kafka_healthy else 'not running'}")
    output.say(f"registry: {url or '-'} {'running' if stack.registry_healthy else 'not running'}")
    body = {"running": stack.healthy, "kafka_bootstrap_servers": servers, "schema_registry_url": url}
    output.result(body, success=stack.healthy)
