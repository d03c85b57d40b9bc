FROM hindcast-base
COPY thanos /bin/
USER 1001
ENTRYPOINT ["/bin/thanos"]
