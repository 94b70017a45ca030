"""Spark's settings, which anybody on the machine can read: credentials among them are refused, everything else is taken."""

from __future__ import annotations

import pytest

from game_events.config.masking import is_credential
from game_events.errors import ConfigurationError
from game_events.spark.config import refuse_credentials

#: Names of Spark's and Hadoop's documentation that have a credential's words and hold none, with values that they may have.
HARMLESS = {
    "spark.authenticate.secretBitLength": "256",
    "spark.hadoop.dfs.ha.fencing.ssh.private-key-files": "/etc/hadoop/fencing.pem",
    "spark.hadoop.fs.azure.local.sas.key.mode": "false",
    "spark.hadoop.fs.azure.sas.expiry.period": "90d",
    "spark.hadoop.fs.s3a.delegation.token.binding": "org.apache.hadoop.fs.s3a.auth.delegation.SessionTokenBinding",
    "spark.hadoop.hadoop.security.credential.clear-text-fallback": "true",
    "spark.hadoop.hadoop.security.crypto.jceks.key.serialfilter": "java.lang.Enum;!*",
    "spark.hadoop.hadoop.security.key.default.cipher": "AES/CTR/NoPadding",
    "spark.hadoop.hadoop.security.kms.client.encrypted.key.cache.low-watermark": "0.3f",
    "spark.hadoop.hadoop.security.service.user.name.key": "hbase.principal",
    "spark.hadoop.hadoop.token.files": "/run/tokens",
    "spark.hadoop.hadoop.zk.ssl.keystore.location": "/etc/keys.jks",
    "spark.hadoop.mapreduce.job.send-token-conf": "dfs.nameservices|^dfs.namenode.*$",
    "spark.hadoop.yarn.resourcemanager.delegation-token-renewer.thread-timeout": "60s",
    "spark.kafka.clusters.mine.sasl.token.mechanism": "SCRAM-SHA-512",
    "spark.kafka.clusters.mine.ssl.keystore.location": "/etc/keys.jks",
    "spark.kerberos.renewal.credentials": "ccache",
    "spark.kubernetes.kerberos.tokenSecret.itemKey": "hadoop",
    "spark.security.credentials.renewalRatio": "0.75",
    "spark.security.credentials.retryWait": "1hour",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.timeTravelTimestampKey": "timestampAsOf",
    "spark.sql.timeTravelVersionKey": "versionAsOf",
    "spark.ssl.privateKey": "/etc/keys/spark.pem",
    "spark.ssl.rpc.privateKey": "/etc/keys/spark.pem",
    "spark.yarn.am.tokenConfRegex": "^dfs.nameservices$",
}


@pytest.mark.parametrize(("name", "value"), HARMLESS.items())
def test_a_documented_name_with_a_credentials_word_that_holds_none_is_taken(name, value):
    refuse_credentials({name: value})
    assert not is_credential(name, value)


@pytest.mark.parametrize(
    "name",
    [
        "spark.ssl.keyPassword",
        "spark.ssl.rpc.privateKeyPassword",
        "spark.authenticate.secret",
        "spark.connect.authenticate.token",
        "spark.hadoop.fs.s3a.encryption.key",
        "spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net",
        "spark.hadoop.fs.azure.account.oauth2.client.secret.me.dfs.core.windows.net",
        "spark.hadoop.hadoop.zk.ssl.keystore.password",
        "spark.executorEnv.GAME_EVENTS_REST_PASSWORD",
        "spark.sql.catalog.rest.s3.secret-access-key",
        "spark.kafka.clusters.mine.ssl.key.password",
    ],
)
def test_a_credential_that_looks_like_a_number_or_a_switch_is_one(name):
    """A setting that is called a password is not a number of anything."""
    assert all(is_credential(name, value) for value in ("12345678", "1234ms", "true"))


def test_an_empty_value_is_no_credential():
    refuse_credentials({"spark.ssl.keyPassword": ""})
    assert not is_credential("spark.ssl.keyPassword", "")


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
