import pytest
from game_events.producer.produce import produce
from game_events.producer.simulator import Simulation
from game_events.pipeline.bronze import load_bronze
from game_events.pipeline.silver import refresh_silver
from game_events.pipeline.refresh import refresh
from game_events.pipeline.report import RunReport
from game_events_tests import books
@pytest.mark.stack
def test_x(settings, pipeline):
    sent = produce(settings, Simulation(games=("rummy","spades"), records_per_game_and_version=10))
    load_bronze(pipeline, RunReport())
    refresh_silver(pipeline, RunReport(), frozenset({"rummy"}))
    r = refresh(pipeline)
    print([(t.table,t.rows,t.version) for t in r.tables])
    books.assert_books_balance(settings, sent)
