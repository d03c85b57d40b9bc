# reach.sh PROMTOOL FOLDER SECONDS: give a new Prometheus a first block, of one sample, SECONDS ago.
#
# A sidecar answers from the time on that prometheus_tsdb_lowest_timestamp_seconds says: the start of the oldest block
# or, while there is none, of what came in order. A replay that lands before another one comes out of order: it would be
# in Prometheus and, for hours, not in Thanos Query.
set -eu
[ ! -e "$2/wal" ] || exit 0
printf '# TYPE hindcast_stack_reach gauge\nhindcast_stack_reach 1 %s\n# EOF\n' "$(($(date +%s) - $3))" > "$2/reach"
TMPDIR=$2 "$1" tsdb create-blocks-from openmetrics "$2/reach" "$2"
rm "$2/reach"
# Before a block of samples in order an empty head takes nothing; it is to take telemetry of any age.
sed -i 's/"level": 1/"level": 1, "hints": ["from-out-of-order"]/' "$2"/*/meta.json
