"""Apply events from Redis Streams or Kafka, with exactly-once effect."""
