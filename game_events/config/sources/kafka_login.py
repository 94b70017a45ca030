"""Kafka's logins: which there are, what is wrong with the options of one, and how texts name one, without its secrets."""

from collections.abc import Mapping
from urllib.parse import urlsplit

#: Value of the setting `kafka_login`: the login of `kafka_options`; others are brought by plug-ins.
OPTIONS = "options"
#: Mechanisms with a user and a password; and with a token.
PASSWORDS, TOKENS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), "OAUTHBEARER"
MECHANISMS = (*PASSWORDS, TOKENS)
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - the name of an option
#: Mechanism of others -> what to use instead.
_INSTEAD = {
    "AWS_MSK_IAM": "set GAME_EVENTS_KAFKA_LOGIN=msk_iam and leave sasl.* out",
    "GSSAPI": "Kerberos needs tickets on every worker; use a client's certificate or another listener of the broker",
}
_WITH = f"{', '.join(PASSWORDS)} (with sasl.username and sasl.password), {TOKENS} (with sasl.oauthbearer.*)"


def mechanism_of(options: Mapping[str, object]) -> str | None:
    """The SASL mechanism that options name, under either of its names."""
    named = options.get("sasl.mechanism") or options.get("sasl.mechanisms")
    return None if named is None else str(named)


def problem(options: Mapping[str, str]) -> str | None:
    """What is wrong with the login of some options, and what to do; None: nothing, or there is no login."""
    mechanism = mechanism_of(options)
    if mechanism is None and not options.get("security.protocol", "").upper().startswith("SASL"):
        return None
    if mechanism is None:
        return f"SASL needs sasl.mechanism: one of {_WITH}"
    if mechanism not in MECHANISMS:
        instead = _INSTEAD.get(mechanism, "use one of these, or a client's certificate")
        return f"sasl.mechanism {mechanism!r} is not supported: {instead}. Supported are {_WITH} (docs/sources.md)"
    if mechanism == TOKENS and options.get("sasl.oauthbearer.method", "").lower() != "oidc":
        return (
            f"sasl.mechanism {TOKENS} needs sasl.oauthbearer.method=oidc, with sasl.oauthbearer.client.id, "
            f"sasl.oauthbearer.client.secret and {TOKEN_URL} (docs/sources.md)"
        )
    return None


def tokens_of(options: Mapping[str, object]) -> str | None:
    """Who gives a login its tokens: a token server's address without its query, or what a plug-in calls it; None: no tokens."""
    if mechanism_of(options) != TOKENS:
        return None
    if "oauth_cb" in options:
        return str(options["oauth_cb"])
    parts = urlsplit(str(options.get(TOKEN_URL, "")))
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else "the token server"


def described(options: Mapping[str, object]) -> str | None:
    """A login by its mechanism and user, or the client's certificate; None: there is no login."""
    mechanism = mechanism_of(options)
    tokens = tokens_of(options)
    if tokens is not None:
        client = options.get("sasl.oauthbearer.client.id") or options.get("sasl.oauthbearer.client.credentials.client.id")
        return f"login {mechanism}{f' of client {client}' if client else ''}, tokens of {tokens}"
    if mechanism is not None:
        return f"login {mechanism} of user {options.get('sasl.username', '')}"
    if any(name.startswith(("ssl.certificate.", "ssl.keystore.")) for name in options):
        return "login by a client's certificate"
    return None
