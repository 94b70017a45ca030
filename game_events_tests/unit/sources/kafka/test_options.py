"""One set of options serves the two clients."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from game_events.errors import ConfigurationError
from game_events.sources.kafka.options import for_java, for_librdkafka, refuse_managed

KEY = ec.generate_private_key(ec.SECP256R1())
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


def test_options_of_java_s_consumer_alone_are_given_to_it_alone():
    """Librdkafka refuses names that it does not know; brokers with tiered storage may need a wait (decision 0012)."""
    options = {"fetch.max.wait.ms": "500", "max.poll.records": "2"}
    assert for_java(options) == options
    assert for_librdkafka(options) == {}


def key_pem(form=serialization.PrivateFormat.PKCS8, password=None):
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return KEY.private_bytes(serialization.Encoding.PEM, form, encryption).decode()


def test_pem_files_become_pem_stores_for_java(tmp_path):
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(key_pem() if name == "key" else f"-----{name}-----")
    options = {f"ssl.{name}.location": str(tmp_path / name) for name in ("ca", "certificate", "key")}
    assert for_java(options) == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----ca-----",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----certificate-----",
        "ssl.keystore.key": key_pem(),
    }
    assert for_librdkafka(options) == options


def test_inline_pem_becomes_pem_stores_for_java_and_stays_for_librdkafka():
    options = {"ssl.ca.pem": "the authority", "ssl.certificate.pem": "the certificate", "ssl.key.pem": key_pem()}
    assert for_java(options) == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "the authority",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "the certificate",
        "ssl.keystore.key": key_pem(),
    }
    assert for_librdkafka(options) == options


@pytest.mark.parametrize("form", [serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("password", [None, b"planted"])
def test_a_key_in_any_form_reaches_java_in_the_one_that_it_reads_and_librdkafka_as_it_is(form, password):
    options = {"ssl.certificate.pem": "c", "ssl.key.pem": key_pem(form, password), "ssl.key.password": "planted"}
    java = for_java(options)
    assert java["ssl.keystore.key"] == key_pem()
    assert "ssl.key.password" not in java
    assert for_librdkafka(options) == options


def test_a_password_of_a_java_store_is_that_clients_business():
    store = {"ssl.keystore.location": "/a.jks", "ssl.keystore.type": "JKS", "ssl.key.password": "k"}
    assert for_java(store) == store


def test_a_store_written_for_java_goes_before_pem_that_is_there_for_librdkafka():
    stores = {"ssl.keystore.location": "/k.jks", "ssl.truststore.location": "/t.jks"}
    pem = {"ssl.ca.pem": "a", "ssl.certificate.pem": "c", "ssl.key.pem": key_pem()}
    assert for_java(stores | pem) == stores
    assert for_librdkafka(stores | pem) == pem


def test_a_pkcs12_file_has_the_same_names_in_both_clients():
    options = {"ssl.keystore.location": "/client.p12", "ssl.keystore.password": "p"}
    assert for_librdkafka(options) == for_java(options) == options
    typed = options | {"ssl.keystore.type": "PKCS12"}
    assert (for_librdkafka(typed), for_java(typed)) == (options, typed)
    assert for_librdkafka(options | {"ssl.keystore.type": "JKS"}) == {}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ssl.certificate.pem": "c"}, "needs its key"),
        ({"ssl.key.pem": "k"}, "needs its key"),
        ({"ssl.certificate.pem": "c", "ssl.key.pem": key_pem(password=b"planted")}, "there is no ssl.key.password"),
        (
            {"ssl.certificate.pem": "c", "ssl.key.pem": key_pem(password=b"planted"), "ssl.key.password": "wr0ng"},
            "cannot be read with ssl.key.password",
        ),
        ({"ssl.certificate.pem": "c", "ssl.key.pem": "s3cret", "ssl.key.password": "wr0ng"}, "no PEM key"),
    ],
)
def test_a_client_certificate_that_cannot_be_used_is_refused_with_the_option_and_without_key_or_password(options, says):
    with pytest.raises(ConfigurationError, match=says) as raised:
        for_java(options)
    assert not any(secret in str(raised.value) for secret in ("wr0ng", "s3cret", "BEGIN"))


def test_a_file_that_is_no_pem_is_named(tmp_path):
    (tmp_path / "ca.der").write_bytes(b"\x30\x82\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"ca\.der is no PEM file"):
        for_java({"ssl.ca.location": str(tmp_path / "ca.der")})


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        for_java({"ssl.ca.location": str(tmp_path / "nowhere")})


@pytest.mark.parametrize("client", [for_java, for_librdkafka])
@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM", "plain"])
def test_a_mechanism_that_one_of_the_clients_has_no_login_for_is_refused_for_both(mechanism, name, client):
    options = {key: value for key, value in LOGIN.items() if key != "sasl.mechanism"}
    with pytest.raises(ConfigurationError, match=f"'{mechanism}' is not supported: use one of PLAIN, SCRAM-SHA-256") as raised:
        client(options | {name: mechanism})
    assert 'pa"ss' not in str(raised.value)


@pytest.mark.parametrize("client", [for_java, for_librdkafka])
def test_a_login_without_a_mechanism_is_refused(client):
    with pytest.raises(ConfigurationError, match=r"needs sasl\.mechanism: use one of PLAIN"):
        client({"security.protocol": "sasl_ssl", "sasl.username": "reader"})


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
