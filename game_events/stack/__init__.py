"""The local stack: a real Kafka broker and a real Schema Registry as child processes, and the jars they and Spark need."""
