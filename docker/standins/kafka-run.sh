#!/bin/bash
# What apache/kafka does at its start, as far as docker-compose.yml uses it: take the mounted properties, format the
# storage once with CLUSTER_ID, run.
set -euo pipefail
cp /mnt/shared/config/server.properties /opt/kafka/config/server.properties
java -XX:TieredStopAtLevel=1 -cp '/opt/kafka/libs/*' kafka.tools.StorageTool \
  format --ignore-formatted -t "$CLUSTER_ID" -c /opt/kafka/config/server.properties
# shellcheck disable=SC2086 - several options in one variable, as in Kafka's own scripts
exec java ${KAFKA_HEAP_OPTS:-} -cp '/opt/kafka/libs/*' kafka.Kafka /opt/kafka/config/server.properties
