"""The recipes of docs/sources.md for logins: each is read as settings, and makes clients of which every option is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from game_events.config.settings import load_settings
from game_events.schema_registry import login_of, registry_client
from game_events.sources.kafka.client import CauseMemory, client_options, new_client

PAGE = Path(__file__).parents[4] / "docs" / "sources.md"
SECTION = PAGE.read_text().partition("### Tokens\n")[2].partition("\n## ")[0]
RECIPES = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_makes_clients(recipe, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "pl4nted")
    (tmp_path / "game_events.yaml").write_text(recipe)
    monkeypatch.chdir(tmp_path)
    settings = load_settings()
    options = client_options(settings, {})
    if "schema_registry_url" in recipe:
        registry_client(settings).close()
        assert login_of(settings) == "login of client game-events, tokens of https://login.example.com/oauth2/token"
    elif settings.kafka_login == "msk_iam":
        token, _ = options["oauth_cb"]("")
        assert token
    else:
        nowhere = {"bootstrap.servers": "localhost:9", "error_cb": CauseMemory("localhost:9")}
        assert new_client(AdminClient, options | nowhere) is not None


def test_there_are_recipes_for_a_token_server_msk_event_hubs_and_the_registry():
    assert len(RECIPES) == 4
