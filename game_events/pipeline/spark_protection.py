"""What keeps others out of Spark's JVM: no credential on its command line, and a secret for its ports."""

from __future__ import annotations

import re
from collections.abc import Mapping

from game_events.errors import ConfigurationError
from game_events.settings import Settings

AUTHENTICATE = "spark.authenticate"
#: Masters for which Spark makes the secret by itself, for each application a new one.
_MAKES_SECRETS = re.compile(r"local(\[.*\])?|yarn|k8s://.*")
#: Words in the name of a setting that holds a credential itself; a key only where it is the last word or is said to be a secret
#: one (`mapKeyDedupPolicy` is none). This project's own settings are taken for such, too: they are the driver's alone, and many
#: are secret.
_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|pwd|token|credential|\bsas\b|key$|(access|private|api|account|master|shared|encryption)[._-]?key|"
    r"Env\.GAME_EVENTS_",
    re.IGNORECASE,
)
#: Names that end in such a word (ABFS puts the account behind it) have the credential as their value, whatever it looks like.
_IS_SECRET = re.compile(
    r"(secret|passw(or)?d|passphrase|pwd|token|credentials?|key)(\.[^.]+\.(dfs|blob)\.core\..*)?$", re.IGNORECASE
)
#: How the name of one ends that only says where a credential is, or of what kind.
_REFERENCE = re.compile(
    r"(files?|path|location|provider|binding|class|type|alias|store|algorithm|mechanism|name|name\.key|conf|regex|keytab)$",
    re.IGNORECASE,
)
#: Names that the lists take for a credential and that their documentation says something else of: names of columns and options,
#: `keytab` or `ccache`, the path of a PEM file.
_NO_CREDENTIAL = re.compile(
    r"spark\.(sql\.(?!catalog\.).*key|kerberos\.renewal\.credentials|ssl\.(\w+\.)?privateKey)", re.IGNORECASE
)
#: Kubernetes' own secrets are meant: their names, and where they are mounted.
_OF_KUBERNETES = re.compile(r"^spark\.kubernetes\..*(pullSecrets$|\.secrets\.|secretKeyRef\.|tokenSecret\.)")
#: Numbers, sizes, times and switches.
_HARMLESS_VALUE = re.compile(r"true|false|\d+(\.\d+)?[a-z]{0,5}", re.IGNORECASE)
#: A credential inside of a value: JVM options, addresses of repositories and databases.
_SECRET_VALUE = re.compile(r"://[^/\s@:]*:[^/\s@]*@|(secret|passw(or)?d|pwd|token|access_?key|sig)=[^\s&;]", re.IGNORECASE)


def refuse_credentials(conf: Mapping[str, str]) -> None:
    """Check that no credential is among a user's Spark settings.

    They become arguments of the JVM, which every user of the machine can read with `ps`, and Spark's UI has a page of them.

    Raises:
        ConfigurationError: names them.
    """
    found = sorted(name for name, value in conf.items() if is_credential(name, value))
    if found:
        raise ConfigurationError(
            f"GAME_EVENTS_SPARK_CONF: {', '.join(found)} would stand in the command line of Spark's JVM, where anybody "
            "can read it: give them by the environment, a role, a core-site.xml in HADOOP_CONF_DIR or a spark-defaults.conf in "
            "SPARK_CONF_DIR (docs/security.md)"
        )


def is_credential(name: str, value: str) -> bool:
    """Whether a Spark setting is a credential, or holds one."""
    if _SECRET_VALUE.search(value):
        return True
    if not value or any(known.search(name) for known in (_REFERENCE, _OF_KUBERNETES)) or _NO_CREDENTIAL.fullmatch(name):
        return False
    if _IS_SECRET.search(name):
        return True
    return _SECRET_NAME.search(name) is not None and _HARMLESS_VALUE.fullmatch(value) is None


def authentication(settings: Settings) -> dict[str, str]:
    """Spark's settings by which its driver and executors answer only those who know the application's secret.

    Without it whoever reaches a port of the driver (loopback's are everybody's on this machine) may send it Java objects, and
    take the blocks of its jobs, in which logins and tokens travel.

    Raises:
        ConfigurationError: the cluster's secret is the cluster's own, and the settings do not say whether it has one.
    """
    if AUTHENTICATE in settings.spark_conf or _MAKES_SECRETS.fullmatch(settings.spark_master):
        return {AUTHENTICATE: "true"}
    raise ConfigurationError(
        f"GAME_EVENTS_SPARK_CONF: {AUTHENTICATE} has to be said for the master {settings.spark_master}: "
        f'"{AUTHENTICATE}": "true" and its {AUTHENTICATE}.secret in the spark-defaults.conf of SPARK_CONF_DIR here and on the '
        'cluster\'s machines; or "false" where nobody else reaches the ports of the driver and the cluster (docs/cluster.md)'
    )
