"""What to do about a certificate that is not trusted."""

from __future__ import annotations

#: What OpenSSL says of a certificate that no known authority has signed.
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
