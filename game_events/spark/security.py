"""Security of Spark's JVM: no credential on its command line, a secret for its ports."""

from __future__ import annotations

import re
from collections.abc import Mapping

from game_events.config.credentials import is_credential
from game_events.config.settings import Settings
from game_events.errors import ConfigurationError

AUTHENTICATE = "spark.authenticate"
#: Masters for which Spark generates a secret per application.
_MAKES_SECRETS = re.compile(r"local(\[.*\])?|yarn|k8s://.*")


def refuse_credentials(conf: Mapping[str, str]) -> None:
    """Raise ConfigurationError for credentials in a user's Spark settings: `ps` and Spark's UI show these."""
    found = sorted(name for name, value in conf.items() if is_credential(name, value))
    if found:
        raise ConfigurationError(
            f"GAME_EVENTS_SPARK_CONF: {', '.join(found)} would be in the command line of Spark's JVM, which every user of this "
            "machine can read: give them by the environment, a role, a core-site.xml in HADOOP_CONF_DIR or a "
            "spark-defaults.conf in SPARK_CONF_DIR (docs/security.md)"
        )


def authentication(settings: Settings) -> dict[str, str]:
    """Spark's settings that require the application's secret on the ports of driver and executors.

    Without it every process that reaches a port of the driver (on this machine any) may send it Java objects and read the
    blocks of its jobs, which hold logins and tokens.

    Raises:
        ConfigurationError: a standalone cluster, for which the settings must configure it.
    """
    if AUTHENTICATE in settings.spark_conf or _MAKES_SECRETS.fullmatch(settings.spark_master):
        return {AUTHENTICATE: "true"}
    raise ConfigurationError(
        f"GAME_EVENTS_SPARK_CONF: {AUTHENTICATE} must be set for the master {settings.spark_master}: "
        f'"{AUTHENTICATE}": "true" and its {AUTHENTICATE}.secret in the spark-defaults.conf of SPARK_CONF_DIR here and on the '
        'cluster\'s machines; or "false" where no other users reach the ports of the driver and the cluster (docs/cluster.md)'
    )
