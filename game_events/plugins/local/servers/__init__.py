"""The local stack for development: a Kafka broker, a Schema Registry, a Spark Connect server."""
