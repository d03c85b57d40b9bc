FROM hindcast-base
COPY prometheus promtool /bin/
RUN mkdir -p /prometheus /etc/prometheus && chown 65534:65534 /prometheus
USER 65534
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
