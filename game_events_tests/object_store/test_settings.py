"""What an object store as the lakehouse needs, and what is refused before anything is written."""

from __future__ import annotations

import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.storage.errors import explain
from game_events.lakehouse.storage.options import delta_options, is_s3, spark_options
from game_events.lakehouse.tables import Lakehouse
from game_events.spark.security import refuse_credentials

VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_S3_ALLOW_UNSAFE_RENAME")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_local_lakehouse_needs_nothing():
    for root in ("lakehouse", "/data/lakehouse", "file:///data/lakehouse"):
        settings = load_settings(lakehouse=root)
        assert delta_options(settings) == spark_options(settings) == {}


def test_no_credential_is_among_what_delta_rs_and_spark_are_told(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "planted-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    settings = load_settings(lakehouse="s3://bucket/prefix", storage_endpoint="https://store:9000")
    lakehouse = Lakehouse.of(settings)
    assert lakehouse.options["AWS_ENDPOINT_URL"] == "https://store:9000"
    assert "planted" not in str(lakehouse.options) + str(spark_options(settings)) + repr(lakehouse.table("x"))


def test_the_endpoint_and_region_of_awss_own_variables_are_taken_and_settings_come_first(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://one:9000/")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    options = delta_options(load_settings(lakehouse="s3://bucket"))
    assert (options["AWS_ENDPOINT_URL"], options["AWS_REGION"]) == ("https://one:9000", "eu-west-1")
    spark = spark_options(load_settings(lakehouse="s3://bucket", storage_endpoint="https://two", storage_region="x"))
    assert (spark["spark.hadoop.fs.s3a.endpoint"], spark["spark.hadoop.fs.s3a.endpoint.region"]) == ("https://two", "x")


@pytest.mark.parametrize("root", ["s3://bucket/a/", "s3a://bucket/a"])
def test_delta_rs_and_spark_know_a_table_by_one_address(root):
    assert is_s3(root)
    assert Lakehouse.of(load_settings(lakehouse=root)).table("t").uri == "s3://bucket/a/t"


def test_plain_http_is_for_this_machine_only_unless_it_is_allowed():
    for host in ("127.0.0.1", "localhost", "[::1]"):
        options = delta_options(load_settings(lakehouse="s3://b", storage_endpoint=f"http://{host}:9000"))
        assert options["AWS_ALLOW_HTTP"] == "true"
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_STORAGE_ALLOW_HTTP"):
        delta_options(load_settings(lakehouse="s3://b", storage_endpoint="http://minio:9000"))
    allowed = load_settings(lakehouse="s3://b", storage_endpoint="http://minio:9000", storage_allow_http=True)
    assert delta_options(allowed)["AWS_ALLOW_HTTP"] == "true"
    assert "AWS_ALLOW_HTTP" not in delta_options(load_settings(lakehouse="s3://b", storage_endpoint="https://minio"))


def test_a_rename_that_two_rivals_could_both_do_is_refused(monkeypatch):
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(ConfigurationError, match="AWS_S3_ALLOW_UNSAFE_RENAME"):
        Lakehouse.of(load_settings(lakehouse="s3://bucket"))


@pytest.mark.parametrize("root", ["s3://key:planted@bucket/x", "s3://planted@bucket", "https://a/b?sig=planted"])
def test_a_key_in_the_roots_address_is_refused_and_not_repeated(root):
    with pytest.raises(ConfigurationError, match="GAME_EVENTS_LAKEHOUSE") as raised:
        load_settings(lakehouse=root)
    assert "planted" not in str(raised.value)


def test_an_azure_container_is_no_password():
    settings = load_settings(lakehouse="abfss://container@account.dfs.core.windows.net/prefix")
    assert delta_options(settings) == {"retry_timeout": "30s"}


@pytest.mark.parametrize(("root", "said"), [("hdfs://node/x", "hdfs:// is not known"), ("s3:///x", "names no bucket")])
def test_a_root_that_cannot_be_one_is_named(root, said):
    with pytest.raises(ConfigurationError, match=said):
        Lakehouse.of(load_settings(lakehouse=root))


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.bucket.lake.session.token",
        "spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net",
        "spark.ssl.keyStorePassword",
        "spark.authenticate.secret",
        "spark.sql.catalog.unity.token",
        "spark.sql.catalog.rest.credential",
        "spark.hadoop.fs.gs.auth.service.account.private.key",
        "spark.hadoop.fs.s3a.encryption.key",
        "spark.hadoop.fs.azure.sas.container.acc.blob.core.windows.net",
        "spark.hadoop.fs.azure.account.oauth2.refresh.token",
        "spark.openlineage.transport.auth.apiKey",
        "spark.connect.authenticate.token",
        "spark.executorEnv.AWS_SESSION_TOKEN",
        "spark.executorEnv.GAME_EVENTS_REST_BEARER_TOKEN",
        "spark.yarn.appMasterEnv.GAME_EVENTS_KAFKA_OPTIONS",
        "spark.kubernetes.authenticate.submission.oauthToken",
        "spark.ssl.keyPassword",
        "spark.some.library.dbPwd",
    ],
)
def test_a_credential_among_sparks_settings_is_refused_as_anybody_could_read_it(name):
    with pytest.raises(ConfigurationError, match="HADOOP_CONF_DIR") as raised:
        refuse_credentials({name: "planted"})
    assert name in str(raised.value)
    assert "planted" not in str(raised.value)


def test_sparks_settings_that_name_a_provider_or_a_file_are_taken():
    conf = {
        "spark.hadoop.fs.s3a.aws.credentials.provider": "x",
        "spark.hadoop.hadoop.security.credential.provider.path": "jceks://file/x",
        "spark.authenticate.secret.file": "/run/secrets/spark",
        "spark.hadoop.fs.azure.account.auth.type": "OAuth",
        "spark.sql.shuffle.partitions": "8",
        "spark.ssl.keyStore": "/etc/spark/keys.p12",
        "spark.ssl.keyStoreType": "PKCS12",
        "spark.network.crypto.keyLength": "256",
        "spark.io.encryption.keygen.algorithm": "HmacSHA256",
        "spark.security.credentials.hive.enabled": "false",
        "spark.kerberos.keytab": "/etc/me.keytab",
        "spark.kubernetes.authenticate.submission.oauthTokenFile": "/run/token",
        "spark.kubernetes.container.image.pullSecrets": "registry-login",
        "spark.kubernetes.driver.secrets.tls": "/etc/tls",
        "spark.kubernetes.executor.secretKeyRef.DB_PASSWORD": "database:password",
        "spark.hadoop.fs.defaultFS": "abfss://container@account.dfs.core.windows.net",
        "spark.redaction.regex": "(?i)secret|password|token",
        "spark.driver.extraJavaOptions": "-Dtrust=/x -Djavax.net.ssl.keyStorePasswordFile=/run/x -Xss4m",
    }
    refuse_credentials(conf)
    with pytest.raises(ConfigurationError) as raised:
        refuse_credentials(conf | {"spark.ssl.trustStorePassword": "planted"})
    assert [name for name in conf if name in str(raised.value)] == []


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("Generic S3 error\n ↳ Error\n ↳ 404 Not Found\n <Code>NoSuchBucket</Code>", ConfigurationError, "no such bucket"),
        ("Generic S3 error\n ↳ 503 Service Unavailable\n ↳ <Code>SlowDown</Code>", TransientError, "SlowDown"),
        ("Generic S3 error\n ↳ error sending request\n ↳ Connection refused (os error 111)", TransientError, "refused"),
        ("org.apache.hadoop.fs.s3a.AWSClientIOException: x: Connection refused", TransientError, "refused"),
        ("java.nio.file.AccessDeniedException: fs.s3a.x (Service: S3, Status Code: 403)", ConfigurationError, "refuses"),
        (
            "Generic S3 error\n ↳ error sending request http://169.254.169.254/latest/api/token",
            ConfigurationError,
            "no credentials",
        ),
        ("Generic GCS error\n ↳ 401 Unauthorized", ConfigurationError, "refuses"),
    ],
)
def test_what_a_store_says_decides_whether_trying_again_can_help(text, kind, said):
    found = explain(OSError(text), "s3://bucket")
    assert isinstance(found, kind)
    assert said in str(found)
    assert "\n" not in str(found)


def test_errors_of_others_stay_what_they_are():
    assert explain(OSError("Generic S3 error: 503 Slow"), "/data/lakehouse") is None
    assert explain(OSError("TimeoutException: no answer from the broker"), "s3://bucket") is None
    assert explain(OSError("Generic S3 error\n ↳ 404 Not Found <Code>NoSuchKey</Code>"), "s3://bucket") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.driver.extraJavaOptions", "-Xss4m -Djavax.net.ssl.trustStorePassword=planted"),
        ("spark.jars.repositories", "https://me:planted@repository.example.com/maven"),
        ("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:mysql://host/metastore?user=me&password=planted"),
        ("spark.some.endpoint", "https://host/x?sig=planted"),
    ],
)
def test_a_credential_inside_of_a_value_is_refused_too(name, value):
    with pytest.raises(ConfigurationError, match=name) as raised:
        refuse_credentials({name: value})
    assert "planted" not in str(raised.value)


@pytest.mark.parametrize("root", ["s3://bucket/x", "gs://bucket/x", "abfss://c@account/x"])
def test_a_variable_by_which_any_certificate_would_do_is_refused(root, monkeypatch):
    monkeypatch.setenv("AWS_ALLOW_INVALID_CERTIFICATES", "true")
    with pytest.raises(ConfigurationError, match="AWS_ALLOW_INVALID_CERTIFICATES"):
        Lakehouse.of(load_settings(lakehouse=root))
