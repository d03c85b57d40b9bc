FROM hindcast-base
COPY alertmanager amtool /bin/
RUN mkdir -p /alertmanager /etc/alertmanager && chown 65534:65534 /alertmanager
USER 65534
WORKDIR /alertmanager
ENTRYPOINT ["/bin/alertmanager"]
