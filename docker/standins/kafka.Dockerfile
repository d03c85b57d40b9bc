FROM hindcast-base
COPY *.jar /opt/kafka/libs/
COPY run.sh /etc/kafka/docker/run
RUN useradd --uid 1000 appuser && mkdir -p /opt/kafka/config /var/lib/kafka/data /mnt/shared/config \
    && chmod 755 /etc/kafka/docker/run && chown -R appuser /opt/kafka/config /var/lib/kafka
USER appuser
VOLUME ["/var/lib/kafka/data"]
ENTRYPOINT ["/etc/kafka/docker/run"]
