"""Plug-in: the login at Amazon MSK by IAM (`KAFKA_LOGIN=msk_iam`), with tokens that AWS's own library signs."""

from game_events.plugin import Plugin

PLUGIN = Plugin(
    "msk",
    packages=("aws_msk_iam_sasl_signer", "boto3", "botocore"),
    settings="game_events.plugins.msk.settings:MskSettings",
    kafka_logins={"msk_iam": "game_events.plugins.msk.worker:tokens"},
)
