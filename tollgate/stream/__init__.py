"""Apply events from Redis Streams or Kafka, once in effect."""
