"""Detection of credentials among settings of Spark and Kafka."""

from __future__ import annotations

import re

#: Words in names of credentials. This project's own settings count as such: only the driver needs them, and many are secret.
_SECRET_NAME = re.compile(r"secret|passw|pwd|token|credential|key|\bsas\b|Env\.GAME_EVENTS_", re.IGNORECASE)
#: Suffixes of names of settings that only refer to a credential.
_REFERENCE = re.compile(r"(file|path|provider|class|type|alias|store|algorithm|name|keytab)$", re.IGNORECASE)
#: Names and mount paths of Kubernetes secrets.
_OF_KUBERNETES = re.compile(r"^spark\.kubernetes\..*(pullSecrets$|\.secrets\.|secretKeyRef\.|tokenSecret\.)")
#: Numbers, sizes, times and switches.
_HARMLESS_VALUE = re.compile(r"|true|false|\d+[a-z]{0,2}", re.IGNORECASE)
#: A credential inside a value: JVM options, addresses of repositories and databases.
_SECRET_VALUE = re.compile(r"://[^/\s@:]*:[^/\s@]*@|(secret|passw(or)?d|pwd|token|access_?key|sig)=[^\s&;]", re.IGNORECASE)

_JAAS = re.compile(r'username="((?:[^"\\]|\\.)*)"\s+password="((?:[^"\\]|\\.)*)"')


def is_credential(name: str, value: str) -> bool:
    """Whether a Spark setting is a credential, or holds one."""
    if _SECRET_VALUE.search(value):
        return True
    named = _SECRET_NAME.search(name) and not _REFERENCE.search(name) and not _OF_KUBERNETES.search(name)
    return bool(named) and _HARMLESS_VALUE.fullmatch(value) is None


def login_of(jaas: str) -> tuple[str, str] | None:
    """User and password of a Java login (`sasl.jaas.config`)."""
    found = _JAAS.search(jaas)
    if found is None:
        return None
    user, password = (re.sub(r"\\(.)", r"\1", part) for part in found.groups())
    return user, password
