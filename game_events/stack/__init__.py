"""The local stack: a real Kafka broker, a real Schema Registry, and the jars that they and Spark need."""
