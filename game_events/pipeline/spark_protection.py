"""What keeps others out of Spark's JVM: no credential on its command line, and a secret for its ports."""

from __future__ import annotations

import re
from collections.abc import Mapping

from game_events.errors import ConfigurationError
from game_events.settings import Settings

AUTHENTICATE = "spark.authenticate"
#: Masters for which Spark makes the secret by itself, for each application a new one.
_MAKES_SECRETS = re.compile(r"local(\[.*\])?|yarn|k8s://.*")
#: Words in the name of a setting that holds a credential itself. This project's own settings are taken for such, too: they are
#: the driver's alone, and many are secret.
_SECRET_NAME = re.compile(r"secret|passw|pwd|token|credential|key|\bsas\b|Env\.GAME_EVENTS_", re.IGNORECASE)
#: How the name of one ends that only says where a credential is, or of what kind.
_REFERENCE = re.compile(r"(file|path|provider|class|type|alias|store|algorithm|name|keytab)$", re.IGNORECASE)
#: Kubernetes' own secrets are meant: their names, and where they are mounted.
_OF_KUBERNETES = re.compile(r"^spark\.kubernetes\..*(pullSecrets$|\.secrets\.|secretKeyRef\.|tokenSecret\.)")
#: Numbers, sizes, times and switches.
_HARMLESS_VALUE = re.compile(r"|true|false|\d+[a-z]{0,2}", re.IGNORECASE)
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
    named = _SECRET_NAME.search(name) and not _REFERENCE.search(name) and not _OF_KUBERNETES.search(name)
    return bool(named) and _HARMLESS_VALUE.fullmatch(value) is None


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
