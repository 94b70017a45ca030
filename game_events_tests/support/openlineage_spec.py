"""OpenLineage events, looked at independently of the code that made them.

The specification is a JSON schema that no package ships. What a package does ship are the client's classes, generated from it
by the specification's own authors: `check_event` builds an event from its JSON with them, field by field, and takes no field
that they lack. With `OPENLINEAGE_SPEC` (the folder `spec` of a checkout of the specification) events are validated against the
JSON schema itself, too, each facet against its own.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import types
import typing
from datetime import datetime
from enum import Enum
from pathlib import Path
from urllib.parse import urlsplit

import attr
import openlineage.client.generated
from openlineage.client.generated import base

SPEC = os.environ.get("OPENLINEAGE_SPEC")
Json = dict[str, typing.Any]


def check_event(event: Json) -> None:
    """Assert that an event is one of the specification's."""
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
    assert urlsplit(event["producer"]).scheme
    _build(base.RunEvent, event)
    if SPEC:
        _validate(event)


def _classes() -> dict[str, type]:
    """Address of a schema -> the class generated from it."""
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(openlineage.client.generated.__path__):
        for value in vars(importlib.import_module(f"openlineage.client.generated.{module.name}")).values():
            if isinstance(value, type) and attr.has(value) and hasattr(value, "_get_schema"):
                found.setdefault(value._get_schema(), value)
    return found


CLASSES = _classes()


def _build(made: type, body: Json) -> object:
    """An instance of a class from its JSON."""
    if "_schemaURL" in body:  # a facet says itself which one it is
        made = CLASSES[body["_schemaURL"]]
        assert urlsplit(body["_producer"]).scheme
    hints = typing.get_type_hints(made)
    fields = {f.name: f for f in attr.fields(made)}
    assert set(body) <= set(fields), (made.__name__, sorted(set(body) - set(fields)))
    given = {n.lstrip("_"): _value(hints[n], v) for n, v in body.items() if fields[n].init}
    built = made(**given)
    for name in body:
        if not fields[name].init:
            assert getattr(built, name) == body[name], name
    return built


def _value(hint: object, value: object) -> object:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        hint = next(a for a in arguments if a is not type(None))
        return None if value is None else _value(hint, value)
    if origin is list:
        assert isinstance(value, list), value
        return [_value(arguments[0], item) for item in value]
    if origin is dict:
        assert isinstance(value, dict), value
        return {key: _value(arguments[1], item) for key, item in value.items()}
    assert isinstance(hint, type), hint
    if attr.has(hint):
        assert isinstance(value, dict), value
        return _build(hint, value)
    if issubclass(hint, Enum):
        return hint(value)
    assert isinstance(value, hint), (hint, value)
    return value


def _validate(event: Json) -> None:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - only where there is a specification
    from referencing import Registry, Resource  # noqa: PLC0415

    files = [
        json.loads(p.read_text()) for p in [Path(SPEC or "") / "OpenLineage.json", *Path(SPEC or "").glob("facets/*.json")]
    ]
    registry = Registry().with_resources((body["$id"], Resource.from_contents(body)) for body in files)
    main = next(body for body in files if body["$id"].endswith("/OpenLineage.json"))

    def check(reference: str, body: object) -> None:
        validator = Draft202012Validator(
            {"$ref": reference}, registry=registry, format_checker=Draft202012Validator.FORMAT_CHECKER
        )
        assert [error.message for error in validator.iter_errors(body)] == []

    assert event["schemaURL"] == f"{main['$id']}#/$defs/RunEvent"
    check(event["schemaURL"], event)
    ids = {body["$id"] for body in files}
    for name, facet in facets(event):
        # The newest text of the specification may be a version ahead of the client's: then it is of the same major version.
        url, _, inside = facet["_schemaURL"].partition("#")
        known = url if url in ids else next(i for i in ids if i.rsplit("/", 1)[1] == url.rsplit("/", 1)[1])
        assert known.split("/")[-2].split("-")[0] == url.split("/")[-2].split("-")[0], name
        check(f"{known}#{inside}", facet)


def facets(event: Json) -> list[tuple[str, Json]]:
    """All facets of an event."""
    holders = [event["run"], event["job"], *event.get("inputs", []), *event.get("outputs", [])]
    names = ("facets", "inputFacets", "outputFacets")
    return [(name, facet) for holder in holders for key in names for name, facet in (holder.get(key) or {}).items()]
