"""Suppression of erased data subjects, in the driver: the key and the list of hashes.

Guarantee: on a lakehouse with erased data subjects, nothing is decoded into bronze without the key of their hashes.
"""

from collections.abc import Callable

from deltalake import DeltaTable

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, DataError
from game_events.lakehouse.commits.transactions import erasures
from game_events.lakehouse.tables import BRONZE, ERASED_PEOPLE, Lakehouse
from game_events.pipeline.context import Pipeline
from game_events.plugins.governance.record_filter import Listed, Suppression, entity_hash, read_suppressed
from game_events.plugins.governance.settings import MIN_ERASURE_KEY_CHARS, ErasureSettings

KEY = "GAME_EVENTS_ERASURE_KEY"


def erasure_key(settings: Settings) -> bytes | None:
    """The key of the hashes, None if no setting has one; ConfigurationError if both have one, or for an unusable file."""
    erasure = ErasureSettings.of(settings)
    if erasure.erasure_key is not None and erasure.erasure_key_file is not None:
        raise ConfigurationError(f"{KEY} and {KEY}_FILE are both set: keep one of them")
    if erasure.erasure_key is not None:
        return erasure.erasure_key.get_secret_value().encode()
    if erasure.erasure_key_file is None:
        return None
    try:
        text = erasure.erasure_key_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{KEY}_FILE: {erasure.erasure_key_file} cannot be read ({type(error).__name__})") from None
    if len(text) < MIN_ERASURE_KEY_CHARS:
        raise ConfigurationError(f"{KEY}_FILE: {erasure.erasure_key_file} must hold {MIN_ERASURE_KEY_CHARS} characters or more")
    return text.encode()


def required_key(settings: Settings) -> bytes:
    """The key of the hashes; ConfigurationError if there is none."""
    key = erasure_key(settings)
    if key is None:
        raise ConfigurationError(
            f"{KEY} is not set: erased data subjects are recognised by hashes made with it. Make one (`openssl rand -hex 32`), "
            f"set it or {KEY}_FILE for every run on this lakehouse, and keep it for ever"
        )
    return key


def record_filter(pipeline: Pipeline, bronze: DeltaTable) -> Suppression | None:
    """The data subjects to suppress; None if none was ever erased, which costs one request; raises as `recognised`.

    `bronze`: the version with the `erasures` that the commit compares: each addition to the list changes them.
    """
    found = recognised(pipeline.settings, pipeline.lakehouse, bronze)
    if found is None:
        return None
    listed, key = found
    hashes = frozenset(bytes.fromhex(h) for h in listed.entries)
    return Suppression(pipeline.settings.key_column, key, hashes, listed.records)


def recognised(settings: Settings, lakehouse: Lakehouse, bronze: DeltaTable | None) -> tuple[Listed, bytes] | None:
    """The list and the key of its hashes; None if no data subject was ever erased.

    Raises:
        ConfigurationError: the key is missing, or is not that of the list.
        DataError: data subjects were erased, and the list is gone.
    """
    listed = read_suppressed(lakehouse)
    if not listed.entries:
        if bronze is not None and erasures(bronze):
            raise DataError(
                f"people were erased from this lakehouse, and {ERASED_PEOPLE}, the list that keeps their records out, is gone. "
                "Nothing was read. Restore the table from a copy, or erase each of them again (`game-events erase`): "
                "`game-events log --kind erased` lists the erasures"
            )
        return None
    key = required_key(settings)
    listed.require_key(key)
    return listed, key


def hashes_of(key: bytes, ids: frozenset[str]) -> frozenset[str]:
    """Hexadecimal hashes of ids."""
    return frozenset(entity_hash(key, text.encode()).hex() for text in ids)


def doctor(settings: Settings) -> dict[str, Callable[[], str]]:
    """What `game-events doctor` shows of the erased people."""
    return {"erased people": lambda: _kept_out(settings)}


def _kept_out(settings: Settings) -> str:
    lakehouse = Lakehouse.of(settings)
    known = recognised(settings, lakehouse, lakehouse.table(BRONZE).open_to_read())
    if known is None:
        return "none"
    listed, _ = known
    text = f"{len(listed.entries):,} are kept out, recognised by the key that is set"
    if listed.unfinished:
        text += f"; of {len(listed.unfinished):,} the erasure is not finished: repeat `game-events erase`, or use --resume"
    return text
