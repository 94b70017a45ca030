"""Which leaders wrote the records before bronze's positions: of any number of partitions, whatever is behind them."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.sources.kafka.source import PARTITIONS_AT_ONCE, KafkaAdmin
from game_events.sources.source import Partition

AT = 100
TIMEOUT_S = 15
TRIES = "reading the leader epochs of records"


def splits(count):
    return [Partition("t", "A" * 20 + "QA", partition) for partition in range(count)]


class Told:
    """What a consumer is given: a record of leader 7, or an error (`topic` None: it is the group's)."""

    def __init__(self, topic, partition, offset=None, error=None):
        self._all = {"topic": topic, "partition": partition, "offset": offset, "error": error, "leader_epoch": 7}

    def __getattr__(self, name):
        return lambda: self._all[name]


class SlowBroker:
    """Each record takes its time, on a clock that nobody waits for; `first`: what comes before any record."""

    def __init__(self, record_s=0.1, first=(), silent=()):
        self.now, self.record_s, self.first, self.silent, self.asked = 0.0, record_s, list(first), set(silent), []
        self.closed = False

    def monotonic(self):
        return self.now

    def __call__(self, options):
        self.options = options
        return self

    def assign(self, wanted):
        self.asked.append([p.partition for p in wanted])
        self.coming = deque(
            [*self.first, *(Told(p.topic, p.partition, AT - 1) for p in wanted if p.partition not in self.silent)]
        )

    def pause(self, partitions):
        pass

    def poll(self, timeout):
        if not self.coming or timeout < self.record_s:
            self.now += timeout
            return None
        self.now += self.record_s
        return self.coming.popleft()

    def close(self):
        self.closed = True


def ask(broker, wanted, earliest=0):
    """Ask a broker for these splits, all at the same position; they have all records from `earliest` on."""
    positions, first = dict.fromkeys(wanted, AT), dict.fromkeys(wanted, earliest)
    admin = KafkaAdmin(load_settings(), TIMEOUT_S, consume=broker, clock=broker.monotonic)
    return admin.epochs_before(positions, first)


def test_an_election_of_hundreds_of_partitions_is_asked_about_in_groups_each_of_which_has_its_own_time():
    """All at once they took longer than the one time limit, in every run again."""
    broker, wanted = SlowBroker(), splits(500)
    assert ask(broker, wanted) == dict.fromkeys(wanted, 7)
    assert broker.now > TIMEOUT_S
    assert max(map(len, broker.asked)) <= PARTITIONS_AT_ONCE
    assert sorted(p for group in broker.asked for p in group) == list(range(500))
    assert broker.closed


def test_a_partition_that_gives_no_answer_ends_the_run_when_its_groups_time_is_over():
    broker = SlowBroker(silent=[PARTITIONS_AT_ONCE + 1])
    with pytest.raises(TransientError, match=TRIES):
        ask(broker, splits(500))
    assert len(broker.asked) == 2, "what comes behind it is not asked"
    assert broker.closed


def test_splits_without_a_record_before_their_position_are_not_asked():
    broker = SlowBroker()
    assert ask(broker, splits(3), earliest=AT) == {}
    assert broker.asked == []


def test_a_login_that_may_read_the_topic_and_use_no_group_gets_its_answers():
    """librdkafka asks for the group's coordinator whether it is needed or not, and says so if that is refused."""
    wanted, refused = splits(3), Told(None, None, error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    assert ask(SlowBroker(first=[refused]), wanted) == dict.fromkeys(wanted, 7)


def test_a_login_that_may_not_read_the_topic_is_told_so():
    refused = Told("t", 1, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(ConfigurationError, match="what this login may do"):
        ask(SlowBroker(first=[refused]), splits(3))


class StartingCoordinator:
    """A broker that makes its topic of offsets: it refuses a group's offsets `times` times."""

    def __init__(self, code, times):
        self._code, self._times, self.committed = code, times, []

    def poll(self, _timeout):
        return 0

    def alter_consumer_group_offsets(self, asked, **_):
        answer = Future()
        if self._times:
            self._times -= 1
            answer.set_exception(KafkaException(KafkaError(self._code)))
        else:
            self.committed += [(p.topic, p.partition, p.offset) for p in asked[0].topic_partitions]
            answer.set_result(asked[0])
        return {asked[0].group_id: answer}


def admin_of(broker, timeout_s=15.0):
    return KafkaAdmin(load_settings(), timeout_s, connect=lambda _: broker)


@pytest.mark.parametrize("code", [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.NOT_COORDINATOR])
def test_offsets_of_a_group_are_committed_as_soon_as_its_coordinator_is_there(code):
    broker = StartingCoordinator(code, times=2)
    admin_of(broker).commit_group_offsets("readers", dict.fromkeys(splits(2), AT))
    assert broker.committed == [("t", 0, AT), ("t", 1, AT)]


def test_a_coordinator_that_stays_away_is_a_transient_error_after_the_time_limit():
    broker = StartingCoordinator(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, times=10**6)
    with pytest.raises(TransientError, match="Coordinator load in progress"):
        admin_of(broker, timeout_s=0.3).commit_group_offsets("readers", dict.fromkeys(splits(1), AT))


def test_other_refusals_of_a_group_are_not_tried_again():
    broker = StartingCoordinator(KafkaError.GROUP_AUTHORIZATION_FAILED, times=1)
    with pytest.raises(TransientError, match="Group authorization failed"):
        admin_of(broker).commit_group_offsets("readers", dict.fromkeys(splits(1), AT))
    assert broker.committed == []
