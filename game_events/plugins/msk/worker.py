"""Tokens for Amazon MSK: an address of the cluster's region, signed with the credentials of whoever asks (driver or worker).

Source: AWS's library aws-msk-iam-sasl-signer-python. A token is valid for 15 minutes; Kafka's client asks for the next one.
"""

import logging
from dataclasses import dataclass

from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
from botocore.exceptions import BotoCoreError, ProfileNotFound

from game_events.config.settings import Settings
from game_events.errors import ConfigurationError, TransientError
from game_events.plugins.msk.settings import MskSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MskTokens:
    """Called by Kafka's client, in driver and workers, for the first token and each later one."""

    region: str

    def __str__(self) -> str:
        return f"AWS IAM, region {self.region}"

    def __call__(self, _config: str) -> tuple[str, float]:
        """A token, and the second since 1970 at which it ends.

        Raises:
            ConfigurationError: AWS's chain of credentials (environment, files, role of the machine) has none.
            TransientError: the chain's own request failed.
        """
        # At DEBUG it writes what it signs, with the signature: all of a token.
        logging.getLogger("botocore.auth").setLevel(logging.INFO)
        try:
            token, ends_ms = MSKAuthTokenProvider.generate_auth_token(self.region)
        except ProfileNotFound as error:
            raise ConfigurationError(f"no token for Amazon MSK in {self.region}: {error}: check AWS_PROFILE") from None
        except BotoCoreError as error:
            log.warning("msk_token=failed region=%s error=%s", self.region, type(error).__name__)
            raise TransientError(f"no token for Amazon MSK in {self.region}: {type(error).__name__}: {error}") from error
        except (AttributeError, ValueError):  # the library's, for none and for empty ones
            raise ConfigurationError(
                f"no token for Amazon MSK in {self.region}: there are no AWS credentials. Driver and workers need them: in the "
                "environment (AWS_ACCESS_KEY_ID ...), a profile (AWS_PROFILE), or by the machine's role"
            ) from None
        return token, ends_ms / 1000


def tokens(settings: Settings) -> MskTokens:
    """The login of the settings; ConfigurationError without a region."""
    region = MskSettings.of(settings).msk_region
    if region is None:
        raise ConfigurationError("GAME_EVENTS_KAFKA_LOGIN=msk_iam needs GAME_EVENTS_MSK_REGION, the cluster's AWS region")
    return MskTokens(region)
