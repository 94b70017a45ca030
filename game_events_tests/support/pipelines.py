"""Pipelines of tests that need neither Spark nor a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from game_events.config.settings import load_settings
from game_events.pipeline.bronze import full_refresh, load
from game_events.pipeline.context import Pipeline
from game_events.workers.results import StagedRows


def without_spark(lakehouse: Path | str, **settings: object) -> Pipeline:
    """A pipeline over the tables of a folder; a test in which it asks for Spark fails."""
    return Pipeline(load_settings(lakehouse=str(lakehouse), **settings), _no_spark)


def _no_spark() -> SparkSession:
    pytest.fail("Spark was started")


def at_progress(pipeline: Pipeline, action: Callable[[str], object]) -> Pipeline:
    """The pipeline, with an action at each of its messages about a step."""

    class Watched(Pipeline):
        def on_progress(self, message: str) -> None:
            super().on_progress(message)
            action(message)

    return Watched(**{field.name: getattr(pipeline, field.name) for field in fields(pipeline)})


def reading(pipeline: Pipeline, source: object, **catalog: object) -> Pipeline:
    """The pipeline with a source and a catalog of schemas that are made by hand."""
    by_hand = {
        "ids_of": lambda _: [],
        "archive": lambda _: [],
        "message_columns": lambda columns, _: columns,
        "documented": lambda schema, *_: schema,
        "about_bronze": lambda *_: None,
        "other_types": lambda _: Counter(),
    }
    pipeline.__dict__.update(source=source, catalog=SimpleNamespace(**{**by_hand, **catalog}))
    return pipeline


def stage_by_hand(patch: pytest.MonkeyPatch, stage: Callable[..., StagedRows]) -> None:
    """A micro-batch is staged by this instead of a Spark job, in runs and in full refreshes.

    Its last argument is a run's `OnePass`, if there is one.
    """

    def staged(*planned: object) -> StagedRows:
        return stage(*(planned if planned[-1] is not None else planned[:-1]))

    for module in (load, full_refresh):
        patch.setattr(module, "stage_micro_batch", staged)
