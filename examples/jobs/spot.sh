#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A job on one instance that may be taken away; the next instance goes on with it. Each runs this when it starts:
#   spot.sh /shared/images ./app
# /shared stays when instances go. NOTICE is the page with which AWS gives two minutes' notice.
notice=${NOTICE:-http://169.254.169.254/latest/meta-data/spot/instance-action}
images=$1
shift

resurgo run -n "${RANKS:-$(nproc)}" --checkpoint-dir "$images" --checkpoint-every 5m --resume-if-any --grace 90s "$@" &
run=$!
while kill -0 $run 2>/dev/null; do
    if curl --silent --fail --max-time 2 --output /dev/null "$notice"; then
        kill -TERM $run # The job is suspended: status 75.
        break
    fi
    sleep "${PAUSE:-5}"
done
wait $run
