"""Detection of credentials, and masking of secrets in errors, logs and tracebacks, in every encoding: they become `***`."""

import base64
import json
import os
import re
import traceback
from collections.abc import Iterable, Iterator
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

from pydantic import SecretStr

from game_events.config.settings import Settings, groups_of, load_settings
from game_events.config.sources.kafka_login import TOKEN_URL
from game_events.config.sources.several import settings_of_each
from game_events.errors import ConfigurationError, first_line

MASK = "***"
#: Shorter values are too frequent in normal text.
MIN_SECRET_CHARS = 4
#: Variables with credentials of object stores and Spark: errors may repeat their values.
_VARIABLES = re.compile(
    r"^((AWS|AZURE|GOOGLE)_.*(SECRET|TOKEN|PASSWORD|KEY$|SAS|CONNECTION_STRING)|"
    r"PYICEBERG_.*(TOKEN|PASSWORD|KEY|CREDENTIAL|CONNECTION_STRING|AUTHORIZATION)$|"
    r"SPARK_CONNECT_AUTHENTICATE_TOKEN$|_SPARK_AUTH_SECRET$)"
)
#: Shorter paths (`/events`) are too frequent in normal text.
MIN_PATH_CHARS = 16
#: Characters of a password with slashes, up to an `@`, and without another address in it.
_TO_AT = r"(?:[^\s\"'<>@:]{0,1000}+(?::(?!//)[^\s\"'<>@:]{0,1000}+)*+@)++"
#: `user:password@`, also with `@` or slashes in the password; not a port with a path. Nothing is tried twice (possessive).
_IN_ADDRESS = re.compile(rf"(://)(?:(?:[^/\s@]{{0,1000}}+@)++|[^/@\s:]{{0,1000}}+:(?!\d{{1,5}}[/?#]){_TO_AT})")
#: Spark Connect's address carries its token as a parameter (`sc://host:443/;use_ssl=true;token=...`).
_TOKEN = re.compile(r"(;\s{0,100}+token=)[^;\s]++", re.IGNORECASE)
#: Kafka's options without secrets, often with frequent values: `https`, `true`, a user `game`. All others are secrets.
_HARMLESS = re.compile(
    r"^(security\.protocol|sasl\.(mechanisms?|username|kerberos\.(service\.name|principal|keytab))|"
    r"sasl\.oauthbearer\.(method|scope|(client\.credentials\.)?client\.id|token\.endpoint\.url|grant\.type|sub\.claim\.name|"
    r"metadata\.authentication\.type|assertion\.(algorithm|claim\..*|(.*\.)?file))|ssl\.endpoint\.identification\.algorithm|.*\.(location|type|codec)|"
    r"client\.(id|rack|dns\.lookup)|group\.id|broker\.address\.family|isolation\.level|auto\.offset\.reset|acks|partitioner|debug|"
    r"(.*\.)?enable(\..*)?|.*\.(ms|bytes|kbytes|records|messages|max))$"
)
#: Longer error texts are cut: Spark's repeat whole plans.
MAX_TEXT = 1_000
#: Characters that are searched for secrets: of a text that is shown whole, and of one that is cut to `MAX_TEXT`.
MAX_SEARCHED, MAX_SEARCHED_SHORT = 1_000_000, 50_000
#: Characters of a login in an address, which a cut may part from the `@` behind it.
_MAX_LOGIN = 2_100
CUT = " ..."
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


def mask(text: str, settings: Settings | None, most: int = MAX_SEARCHED) -> str:
    """Mask secrets of the settings (None: unreadable), of the environment, and in addresses; `most`: see `mask_all`."""
    return mask_all(text, _secrets(settings), most)


def settings_to_mask() -> Settings | None:
    """The settings for `mask`; None if they cannot be read, which may be the reported error."""
    try:
        return load_settings()
    except ConfigurationError:
        return None


def value_of(secret: SecretStr | None) -> str | None:
    """The plain value of a secret."""
    return None if secret is None else secret.get_secret_value()


def mask_all(text: str, secrets: Iterable[str], most: int = MAX_SEARCHED) -> str:
    """Mask some secrets, in every encoding, and secrets in addresses; a text of more than `most` characters is cut."""
    forms = sorted({form for secret in secrets for form in forms_of(secret)}, key=len, reverse=True)
    longest = max([_MAX_LOGIN, *map(len, forms[:1])])
    masked = text[: most + longest]
    for form in forms:
        masked = masked.replace(form, MASK)
    masked = _TOKEN.sub(rf"\1{MASK}", _IN_ADDRESS.sub(rf"\1{MASK}@", masked))
    # The first part of a secret may stand at the cut, where it is not found.
    return masked if len(text) <= most + longest else masked[:-longest] + CUT


def masked_traceback(error: BaseException, settings: Settings | None) -> str | None:
    """An error's masked traceback with its causes; None: it holds no secret."""
    text = "".join(traceback.format_exception(error))
    masked = mask(text, settings)
    return None if masked == text else masked


def forms_of(secret: str) -> set[str]:
    """A secret, plain and as encoded in JSON, Python's `repr`, a JAAS login, an address or a header."""
    if len(secret) < MIN_SECRET_CHARS:
        return set()
    forms = {secret}
    for _ in range(2):  # the `repr` of a JSON text, say
        forms |= {form for known in forms for form in _escaped(known)}
    for known in (secret, secret.strip()):
        forms |= {quote(known, safe=""), quote(known), quote_plus(known)}
        encoded = base64.b64encode(known.encode()).decode()
        forms |= {encoded, encoded.rstrip("="), base64.urlsafe_b64encode(known.encode()).decode().rstrip("=")}
    return {form for form in forms if len(form) >= MIN_SECRET_CHARS}


def _escaped(text: str) -> Iterator[str]:
    for ascii_only in (True, False):
        yield json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    yield repr(text)[1:-1]
    yield ascii(text)[1:-1]
    yield repr(text.encode())[2:-1]
    # Java's quoting of a login; PostgreSQL's and librdkafka's of a single quote is `repr`'s.
    yield text.replace("\\", "\\\\").replace('"', '\\"')
    yield text.replace("'", "\\'")


def _secrets(settings: Settings | None) -> set[str]:
    """All values that are secrets: of the environment, and of the settings, if they can be read."""
    secrets = {value for name, value in os.environ.items() if _VARIABLES.search(name) and not name.endswith("_FILE")}
    if settings is None:
        return secrets
    for one in (settings, *settings_of_each(settings).values()):
        secrets |= _secrets_of(one)
    return secrets


def _secrets_of(settings: Settings) -> set[str]:
    """All values of the settings, or of those of one source, that are secrets."""
    secrets = _secret_values(settings)
    secrets |= _tokens(settings.spark_remote or "")
    options = settings.kafka_options
    secrets.update(login_secrets(value_of(options.get("sasl.username")), options.get("sasl.password")))
    for client in ("sasl.oauthbearer.client", "sasl.oauthbearer.client.credentials.client"):
        secrets.update(login_secrets(value_of(options.get(f"{client}.id")), options.get(f"{client}.secret")))
    secrets.update(login_secrets(settings.schema_registry_client_id, settings.schema_registry_client_secret))
    secrets |= {part for _, part in parse_qsl(urlsplit(value_of(options.get(TOKEN_URL)) or "").query)}
    java_user, java_password = _java_login(value_of(options.get("sasl.jaas.config")) or "")
    secrets.update(login_secrets(java_user, java_password))
    secrets.update(login_secrets(settings.schema_registry_user, settings.schema_registry_password))
    for group in groups_of(type(settings)):
        secrets.update(group.further_secrets(settings))
    secrets |= {value for name, value in settings.spark_conf.items() if is_credential(name, value)}
    return secrets


def _secret_values(settings: Settings) -> set[str]:
    """Values of the secret settings, and of options in them."""
    secrets: set[str] = set()
    for name, value in settings:
        for option, item in value.items() if isinstance(value, dict) else [(name, value)]:
            if isinstance(item, SecretStr) and not _HARMLESS.match(option):
                secrets.add(item.get_secret_value())
    return secrets


def _tokens(remote: str) -> set[str]:
    """Tokens in the address of a Spark Connect server."""
    return {part.partition("=")[2] for part in remote.split(";") if part.strip().lower().startswith("token=")}


def login_secrets(user: str | None, password: SecretStr | None) -> set[str]:
    """A password, and the header of basic authentication, which holds `user:password`."""
    if password is None:
        return set()
    plain = password.get_secret_value()
    return {plain, base64.b64encode(f"{user or ''}:{plain}".encode()).decode()}


def _java_login(jaas: str) -> tuple[str | None, SecretStr | None]:
    """User and password of a Java login (`sasl.jaas.config`)."""
    login = _JAAS.search(jaas)
    if login is None:
        return None, None
    user, password = (re.sub(r"\\(.)", r"\1", part) for part in login.groups())
    return user, SecretStr(password)


def secret_parts(address: str) -> set[str]:
    """Secret parts of an address: path with query, and each value of the query."""
    parts = urlsplit(address)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    return {value for _, value in parse_qsl(parts.query)} | ({path} if len(path) >= MIN_PATH_CHARS else set())


def without_secrets(text: str, settings: Settings, most: int = MAX_TEXT) -> str:
    """A masked text, cut to so many characters."""
    text = mask(text, settings, MAX_SEARCHED_SHORT)
    return text if len(text) <= most else text[:most].removesuffix(CUT) + CUT


def cause_of(error: BaseException, settings: Settings) -> str:
    """Class and first line of an error of others, whose texts are long stacks; without secrets."""
    return without_secrets(f"{type(error).__name__}: {first_line(error)}", settings, most=600)


def is_credential(name: str, value: str) -> bool:
    """Whether a Spark setting is a credential, or holds one."""
    if _SECRET_VALUE.search(value):
        return True
    if not value or any(known.search(name) for known in (_REFERENCE, _OF_KUBERNETES)) or _NO_CREDENTIAL.fullmatch(name):
        return False
    if _IS_SECRET.search(name):
        return True
    return _SECRET_NAME.search(name) is not None and _HARMLESS_VALUE.fullmatch(value) is None
