"""Options and causes, without a broker."""

import re
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.tables import Lakehouse
from game_events.plugins.local.producer.messages import KafkaWriter
from game_events.sources.kafka.client import NO_TOKEN_S, CauseMemory, client_options, ensure_topic
from game_events.sources.kafka.source import KafkaAdmin, KafkaSource
from game_events.sources.source import MicroBatch, Partition, SourceContext

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
REFUSED = KafkaError(KafkaError._AUTHENTICATION, "bad password")
BROKEN = KafkaError(KafkaError._TRANSPORT, "connection refused")
NO_CERTIFICATE = KafkaError(
    KafkaError._TRANSPORT,
    "ssl://b: Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert number 42",
)


@pytest.mark.parametrize("heard", [[REFUSED, DOWN, BROKEN], [DOWN, REFUSED], [BROKEN, REFUSED]])
def test_a_refused_login_is_what_counts(heard):
    memory = CauseMemory("broker:1")
    for error in heard:
        memory(error)
    error = memory.explain("listing topics", BROKEN)
    assert isinstance(error, ConfigurationError)
    assert "bad password" in str(error)
    assert "broker:1" in str(error)


def test_a_broker_that_misses_our_certificate_refuses_us_although_the_client_takes_it_for_a_broken_line():
    memory = CauseMemory("broker:1")
    memory(NO_CERTIFICATE)
    assert memory.refused
    assert isinstance(memory.explain("reading topic"), ConfigurationError)


def test_an_unreachable_broker_may_come_back():
    memory = CauseMemory("broker:1")
    memory(BROKEN)
    memory(DOWN)
    error = memory.explain("listing topics")
    assert isinstance(error, TransientError)
    assert "connection refused" in str(error)


def test_the_settings_options_win_but_not_over_the_brokers_address():
    settings = Settings(kafka_bootstrap_servers="right:1", kafka_options={"linger.ms": "7", "bootstrap.servers": "wrong:1"})
    options = client_options(settings, {"linger.ms": 20, "acks": "all"})
    assert (options["linger.ms"], options["acks"], options["bootstrap.servers"]) == ("7", "all", "right:1")


URL = "https://login.example.com/token"


def of_tokens(text, code=KafkaError._AUTHENTICATION):
    return KafkaError(code, text)


def no_token(why):
    return of_tokens(f"Failed to acquire SASL OAUTHBEARER token: {why}")


@pytest.mark.parametrize(
    ("heard", "said"),
    [
        (
            no_token('{"error": "invalid_client"}'),
            rf"{URL} refuses the client .*invalid_client.*check sasl\.oauthbearer\.client\.id",
        ),
        (
            no_token("SSL certificate OpenSSL verify result: unable"),
            rf"certificate of {URL} is not trusted.*GAME_EVENTS_TLS_CA_FILE",
        ),
        (no_token("error adding trust anchors from file: /x"), "is not trusted"),
        (of_tokens('SASL authentication error: {"status":"invalid_token"}'), f"invalid_token.*it refuses the token of {URL}"),
        (of_tokens("broker certificate could not be verified", KafkaError._SSL), r"check GAME_EVENTS_KAFKA_OPTIONS \(security"),
    ],
)
def test_a_login_by_tokens_that_is_refused_for_good_says_by_whom(heard, said):
    memory = CauseMemory("broker:1", URL)
    memory(heard)
    memory(DOWN)
    assert memory.refused
    error = memory.explain("reading", BROKEN)
    assert isinstance(error, ConfigurationError)
    assert re.search(said, str(error))


@pytest.mark.parametrize(
    "why",
    ["Failed to connect to login:443", "Could not resolve host: login", "oops", '{"error": "temporarily_unavailable"}', ""],
)
def test_a_token_server_that_gives_no_token_for_a_while_is_waited_for_and_named(why):
    now = [0.0]
    memory = CauseMemory("broker:1", URL, clock=lambda: now[0])
    memory(no_token(why))
    memory(of_tokens('SASL authentication error: {"status":"invalid_token"}'))  # the last token has ended
    memory(BROKEN)
    assert not memory.refused
    error = memory.explain("reading", BROKEN)
    assert isinstance(error, TransientError)
    assert f"no login, as {URL} gives no token ({why})" in str(error)
    now[0] = NO_TOKEN_S + 1
    assert "gives no token" not in str(memory.explain("reading", BROKEN))


def test_what_a_token_server_answers_is_cut():
    memory = CauseMemory("broker:1", URL)
    memory(no_token("<html>" + "x" * 10_000))
    assert len(str(memory.explain("reading"))) < 1_000


def test_a_new_login_that_came_too_soon_is_no_refusal_as_the_client_connects_again():
    memory = CauseMemory("broker:1", URL)
    memory(of_tokens("SASL OAUTHBEARER mechanism handshake failed: Broker: Request not valid in current SASL state: ..."))
    assert not memory.refused
    assert isinstance(memory.explain("reading"), TransientError)


def test_a_token_server_that_has_said_nothing_yet_is_named_beside_the_broker():
    error = CauseMemory("broker:1", URL).explain("reading", BROKEN)
    assert isinstance(error, TransientError)
    assert f"Does {URL} give tokens?" in str(error)
    assert "give tokens" not in str(CauseMemory("broker:1").explain("reading", BROKEN))


@pytest.mark.parametrize("heard", [REFUSED, None])
def test_a_new_client_s_first_tries_are_short_and_end_when_it_is_refused(heard):
    """A request of a client that cannot log in just times out; and it must not be left alone, as its client must outlive it."""
    seconds = []

    def make(options):
        def describe(_, request_timeout):
            seconds.append(request_timeout)
            return {"t": Answers(KafkaException(KafkaError(KafkaError._TIMED_OUT, "no controller")))}

        def poll(_):
            if heard is not None:
                options["error_cb"](heard)

        return SimpleNamespace(describe_topics=describe, poll=poll)

    with pytest.raises(ConfigurationError if heard else TransientError):
        KafkaAdmin(Settings(), 15, connect=make).describe(["t"])
    assert seconds == ([1] if heard else [1, 2, 4, 8])


@pytest.mark.parametrize("use", [lambda settings: ensure_topic(settings, 1), KafkaWriter])
def test_an_unknown_option_is_named_and_its_value_is_not(use):
    with pytest.raises(ConfigurationError, match=r"no\.such\.option") as caught:
        use(Settings(kafka_options={"no.such.option": "hunter2"}))
    assert "hunter2" not in str(caught.value)


def test_a_topic_is_made_with_the_replication_that_the_broker_is_set_to():
    """A hosted cluster wants three copies and refuses a topic with one; a laptop's broker has room for one only."""
    asked = []

    class Admin:
        def __init__(self, *_):
            """Connects to nothing."""

        def list_topics(self, **_):
            return SimpleNamespace(topics={})

        def create_topics(self, topics, **_):
            asked.extend(topics)
            return {topic.topic: Answers(None) for topic in topics}

    ensure_topic(Settings(kafka_topic="games"), 4, connect=Admin)
    assert [(topic.topic, topic.num_partitions, topic.replication_factor) for topic in asked] == [("games", 4, -1)]


def test_an_undelivered_record_names_its_partition():
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:1", kafka_topic="games", kafka_options={"message.timeout.ms": "300"})
    with pytest.raises(TransientError, match=r"games\[.*\]"), KafkaWriter(settings) as writer:
        writer.write(b"value", b"key", {"game": "rummy"})


def test_an_error_inside_is_not_hidden_by_the_flush():
    settings = Settings(kafka_bootstrap_servers="127.0.0.1:1")
    with pytest.raises(KeyboardInterrupt), KafkaWriter(settings) as writer:
        writer.write(b"value", b"key", {"game": "rummy"})
        raise KeyboardInterrupt


class Answers:
    """What a broker answers, one after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def result(self, **_):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_topic_that_was_there_may_come_back_and_one_that_never_was_is_a_wrong_setting():
    unknown = KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic"))
    there = SimpleNamespace(partitions=[SimpleNamespace(id=0)], topic_id="id")
    described, listed = Answers(unknown, there, unknown, there), Answers(unknown)
    admin = SimpleNamespace(
        describe_topics=lambda _, **__: {"games": described},
        list_offsets=lambda _, **__: {TopicPartition("games", 0): listed},
    )
    settings = Settings(kafka_topic="games")
    topic = KafkaSource(SourceContext(settings, Lakehouse.of(settings)), KafkaAdmin(settings, connect=lambda _: admin))
    with pytest.raises(ConfigurationError, match="has no topic 'games'"):
        topic.snapshot()
    # A new partition's leader does not know it yet; then the topic is being made anew; then it is there again.
    for _ in range(2):
        with pytest.raises(TransientError, match="does not know topic 'games', or one of its partitions"):
            topic.snapshot()
    assert topic.changed(MicroBatch({}, {Partition("games", "id", 0): 1})) is None
