"""One set of options serves the two clients."""

import pytest

from game_events.errors import ConfigurationError
from game_events.sources.kafka_options import for_java, for_librdkafka, refuse_managed

LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "reader",
    "sasl.password": 'pa"ss\\word',
}


def test_user_and_password_become_a_login_module_for_java():
    java = for_java(LOGIN)
    assert java["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="reader" password="pa\\"ss\\\\word";'
    )
    assert java["security.protocol"] == "SASL_SSL"
    assert java["sasl.mechanism"] == "SCRAM-SHA-512"
    assert not {"sasl.username", "sasl.password"} & java.keys()


def test_librdkafka_gets_its_own_names_unchanged():
    assert for_librdkafka(LOGIN) == LOGIN


def test_a_login_module_written_for_java_serves_librdkafka_too():
    java = dict(for_java(LOGIN))
    assert for_librdkafka(java) == LOGIN
    assert for_java(java) == java


def test_pem_files_become_pem_stores_for_java(tmp_path):
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"-----{name}-----")
    options = {f"ssl.{name}.location": str(tmp_path / name) for name in ("ca", "certificate", "key")}
    assert for_java(options) == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----ca-----",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----certificate-----",
        "ssl.keystore.key": "-----key-----",
    }
    assert for_librdkafka(options) == options


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        for_java({"ssl.ca.location": str(tmp_path / "nowhere")})


def test_a_mechanism_without_user_and_password_is_refused_without_the_secret():
    with pytest.raises(ConfigurationError, match="GSSAPI") as raised:
        for_java(LOGIN | {"sasl.mechanism": "GSSAPI"})
    assert "word" not in str(raised.value).split("sasl.username")[0]
    assert 'pa"ss' not in str(raised.value)


@pytest.mark.parametrize("name", ["isolation.level", "group.id"])
def test_options_that_exactly_once_depends_on_are_refused(name):
    with pytest.raises(ConfigurationError, match=name):
        refuse_managed({name: "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable.ssl.certificate.verification", "false"),
        ("enable.ssl.certificate.verification", "0"),
        ("ssl.endpoint.identification.algorithm", "none"),
        ("ssl.endpoint.identification.algorithm", ""),
        ("ssl.endpoint.identification.algorithm", " "),
    ],
)
def test_no_option_turns_the_check_of_certificates_off_for_either_client(name, value):
    for client in (for_java, for_librdkafka):
        with pytest.raises(ConfigurationError, match=name):
            client(LOGIN | {name: value})


def test_options_that_ask_for_the_check_are_taken():
    asked = {"enable.ssl.certificate.verification": "true", "ssl.endpoint.identification.algorithm": "HTTPS"}
    assert for_librdkafka(asked) == asked


def test_other_options_reach_both_clients():
    assert for_java({"client.id": "x"}) == for_librdkafka({"client.id": "x"}) == {"client.id": "x"}


def test_a_login_for_a_broker_that_wants_none_is_left_out():
    assert "sasl.jaas.config" not in for_java({"sasl.username": "reader", "sasl.password": "x"})
