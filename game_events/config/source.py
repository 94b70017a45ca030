"""Where the settings of a graph come from: given once, or read from environment, `.env` and YAML at each use."""

from dataclasses import dataclass, field

from game_events.config.settings import Settings, load_settings


@dataclass(frozen=True)
class SettingsSource:
    """Settings that were given; None: what the environment says now, so that a changed rule needs no restart."""

    given: Settings | None = field(default=None, repr=False)

    def read(self) -> Settings:
        """The settings.

        Raises:
            ConfigurationError: the environment's are invalid.
        """
        return self.given if self.given is not None else load_settings()
