"""What keeps others out of Spark's JVM: no credential on its command line, and a secret for its ports."""

from __future__ import annotations

import re
from collections.abc import Mapping

from game_events.config.credentials import is_credential
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError

AUTHENTICATE = "spark.authenticate"
#: Masters for which Spark makes the secret by itself, for each application a new one.
_MAKES_SECRETS = re.compile(r"local(\[.*\])?|yarn|k8s://.*")


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
