#!/bin/sh
# Checks what cannot be installed by this project itself: Python >= 3.11 (with venv) and Java >= 17.
# Prints what to do and exits with 1 if something is missing; silent otherwise.
PYTHON="${PYTHON:-python3}"
fail() { printf '%s\n' "game_events needs $1" "  $2" >&2; exit 1; }

command -v "$PYTHON" >/dev/null 2>&1 ||
  fail "Python 3.11 or newer, and '$PYTHON' was not found." \
    "Install it (Debian: apt-get install python3 python3-venv; macOS: brew install python@3.12) or name one: make PYTHON=/path/to/python3 ..."
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  fail "Python 3.11 or newer; '$PYTHON' is $("$PYTHON" --version 2>&1)." \
    "Install a newer one, or name one: make PYTHON=/path/to/python3.12 ..."
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "Python's venv module, which '$PYTHON' lacks." "Install it (Debian: apt-get install python3-venv)."

java="java"
if [ -n "${JAVA_HOME:-}" ]; then java="$JAVA_HOME/bin/java"; fi
command -v "$java" >/dev/null 2>&1 ||
  fail "Java 17 or newer, and '$java' was not found." \
    "Install it (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME."
version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -1)
[ "${version:-0}" -ge 17 ] ||
  fail "Java 17 or newer; '$java' is version ${version:-unknown}." \
    "Install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME to one."
