"""The whole pipeline with its tables in an S3-compatible store: the same guarantees as on a disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from game_events.pipeline.context import Pipeline
from game_events.pipeline.refresh import refresh
from game_events.settings import Settings
from game_events_tests.books import assert_books_balance
from game_events_tests.guarantees.waves import send, versions

pytestmark = pytest.mark.stack
MakeS3 = Callable[[Settings], Pipeline]


def test_a_run_fills_the_tables_and_one_with_nothing_new_writes_nothing(s3, make_s3_pipeline):
    sent = send(s3)
    report = refresh(make_s3_pipeline(s3))
    assert report.success, report.errors
    assert_books_balance(s3, sent)
    before = versions(s3)
    assert refresh(make_s3_pipeline(s3)).tables == []
    assert versions(s3) == before
