# debootstrap's folder, imported as hindcast-base: Debian bookworm, Python 3.11, wget, a Java 17 runtime.
FROM hindcast-base
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
