"""Finds the Java executable for broker, registry, Spark and Ivy, and checks its version."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from game_events.errors import ConfigurationError

#: Spark 4, Kafka 4 and Apicurio 3 all need it.
MIN_JAVA = 17

HOW_TO_INSTALL = (
    f"install Java {MIN_JAVA} or newer (Debian, Ubuntu: apt-get install openjdk-{MIN_JAVA}-jre-headless) "
    "or set JAVA_HOME to where one is"
)

#: Spark's settings of Java's options: those that precede the user's, and the user's.
DEFAULT_JAVA_OPTIONS, EXTRA_JAVA_OPTIONS = "spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions"


def find_java() -> Path:
    """The java of JAVA_HOME, else of PATH; ConfigurationError if there is none, it does not run, or it is too old."""
    home = os.environ.get("JAVA_HOME")
    # As in Spark's scripts: JAVA_HOME alone decides if it is set.
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH, and JAVA_HOME is not set"
        raise ConfigurationError(f"no java {where}: {HOW_TO_INSTALL}")
    answer = _version_text(java)
    # 17 of `openjdk version "17.0.15"`, 8 of `java version "1.8.0_452"`.
    version = re.search(r'version "(?:1\.)?(\d+)', answer)
    if version is None:
        raise ConfigurationError(f"{java} -version failed ({answer.strip()[-300:]}): {HOW_TO_INSTALL}")
    if int(version[1]) < MIN_JAVA:
        raise ConfigurationError(f"{java} is Java {version[1]}: {HOW_TO_INSTALL}")
    return Path(java)


@functools.lru_cache
def _version_text(java: str) -> str:
    """All that an executable says of its version and build; ConfigurationError if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"{java} does not run ({error}): {HOW_TO_INSTALL}") from None
    if answer.returncode != 0:
        output = (answer.stderr or answer.stdout).strip()
        raise ConfigurationError(f"{java} -version failed ({output[-300:] or answer.returncode}): {HOW_TO_INSTALL}")
    return answer.stderr + answer.stdout
