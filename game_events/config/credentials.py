"""Detection of credentials among settings of Spark and Kafka."""

import re

#: Words in names of credentials; `key` only as the last word or in the name of a secret key (not `mapKeyDedupPolicy`). This
#: project's own settings count as such: only the driver needs them, and many are secret.
_SECRET_NAME = re.compile(
    r"secret|passw|passphrase|pwd|token|credential|\bsas\b|key$|(access|private|api|account|master|shared|encryption)[._-]?key|"
    r"Env\.GAME_EVENTS_",
    re.IGNORECASE,
)
#: Names that end in such a word (ABFS appends the account): the value is the credential, whatever it looks like.
_IS_SECRET = re.compile(
    r"(secret|passw(or)?d|passphrase|pwd|token|credentials?|key)(\.[^.]+\.(dfs|blob)\.core\..*)?$", re.IGNORECASE
)
#: Suffixes of names of settings that only refer to a credential.
_REFERENCE = re.compile(
    r"(files?|path|location|provider|binding|class|type|alias|store|algorithm|mechanism|name|name\.key|conf|regex|keytab)$",
    re.IGNORECASE,
)
#: Exceptions by their documentation: names of columns and options, `keytab` or `ccache`, the path of a PEM file.
_NO_CREDENTIAL = re.compile(
    r"spark\.(sql\.(?!catalog\.).*key|kerberos\.renewal\.credentials|ssl\.(\w+\.)?privateKey)", re.IGNORECASE
)
#: Names and mount paths of Kubernetes secrets.
_OF_KUBERNETES = re.compile(r"^spark\.kubernetes\..*(pullSecrets$|\.secrets\.|secretKeyRef\.|tokenSecret\.)")
#: Numbers, sizes, times and switches.
_HARMLESS_VALUE = re.compile(r"true|false|\d+(\.\d+)?[a-z]{0,5}", re.IGNORECASE)
#: A credential inside a value: JVM options, addresses of repositories and databases.
_SECRET_VALUE = re.compile(r"://[^/\s@:]*:[^/\s@]*@|(secret|passw(or)?d|pwd|token|access_?key|sig)=[^\s&;]", re.IGNORECASE)

_JAAS = re.compile(r'username="((?:[^"\\]|\\.)*)"\s+password="((?:[^"\\]|\\.)*)"')


def is_credential(name: str, value: str) -> bool:
    """Whether a Spark setting is a credential, or holds one."""
    if _SECRET_VALUE.search(value):
        return True
    if not value or any(known.search(name) for known in (_REFERENCE, _OF_KUBERNETES)) or _NO_CREDENTIAL.fullmatch(name):
        return False
    if _IS_SECRET.search(name):
        return True
    return _SECRET_NAME.search(name) is not None and _HARMLESS_VALUE.fullmatch(value) is None


def login_of(jaas: str) -> tuple[str, str] | None:
    """User and password of a Java login (`sasl.jaas.config`)."""
    found = _JAAS.search(jaas)
    if found is None:
        return None
    user, password = (re.sub(r"\\(.)", r"\1", part) for part in found.groups())
    return user, password
