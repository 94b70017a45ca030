"""What an object store as the lakehouse needs, and what is refused before anything is written."""

from __future__ import annotations

import pytest

from game_events.config.settings import load_settings
from game_events.errors import ConfigurationError, TransientError
from game_events.lakehouse.storage import delta_options, explain, is_s3, spark_options
from game_events.lakehouse.tables import Lakehouse

VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_S3_ALLOW_UNSAFE_RENAME")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_local_lakehouse_needs_nothing():
    for root in ("lakehouse", "/data/lakehouse", "file:///data/lakehouse"):
        settings = load_settings(lakehouse=root)
        assert delta_options(settings) == spark_options(settings) == {}


@pytest.mark.parametrize(
    "root", ["/data/a%41b", "a\\b", "s3://bucket/a%20b", "s3://bucket/a#b", "s3://bucket/a//b", "s3://b#ucket"]
)
def test_a_root_that_delta_rs_would_take_for_another_one_is_refused(root):
    with pytest.raises(ConfigurationError, match=r"GAME_EVENTS_LAKEHOUSE.*another place"):
        delta_options(load_settings(lakehouse=root))


@pytest.mark.parametrize("root", ["/data/a b#é+100%", "/data/a[1]{b}*?", "s3://bucket/a b/é+=&/", "s3://bucket"])
def test_any_other_root_is_taken(root):
    plain = "s3://bucket/plain" if root.startswith("s3:") else "/data"
    assert delta_options(load_settings(lakehouse=root)) == delta_options(load_settings(lakehouse=plain))


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
    assert delta_options(settings) == {"retry_timeout": "30s", "pool_idle_timeout": "5s"}


@pytest.mark.parametrize(("root", "said"), [("hdfs://node/x", "hdfs:// is not known"), ("s3:///x", "names no bucket")])
def test_a_root_that_cannot_be_one_is_named(root, said):
    with pytest.raises(ConfigurationError, match=said):
        Lakehouse.of(load_settings(lakehouse=root))


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


@pytest.mark.parametrize("root", ["s3://bucket/x", "gs://bucket/x", "abfss://c@account/x"])
def test_a_variable_by_which_any_certificate_would_do_is_refused(root, monkeypatch):
    monkeypatch.setenv("AWS_ALLOW_INVALID_CERTIFICATES", "true")
    with pytest.raises(ConfigurationError, match="AWS_ALLOW_INVALID_CERTIFICATES"):
        Lakehouse.of(load_settings(lakehouse=root))


@pytest.mark.parametrize("root", ["s3:/bucket/a", "s3:bucket"])
def test_an_address_with_a_slash_too_few_is_no_folder_of_this_machine(root):
    with pytest.raises(ConfigurationError, match=r"is no address of a store: s3://bucket/prefix"):
        delta_options(load_settings(lakehouse=root))
