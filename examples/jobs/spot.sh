#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A job on one instance that may be taken away; the next instance goes on with it. Each runs this when it starts:
#   spot.sh /shared/images ./app
# /shared stays when instances go. NOTICE is the page with which AWS gives two minutes' notice.
service=http://169.254.169.254/latest
notice=${NOTICE:-$service/meta-data/spot/instance-action}
images=$1
shift

resurgo run -n "${RANKS:-$(nproc)}" --checkpoint-dir "$images" --checkpoint-every 5m --resume-if-any --grace 90s "$@" &
run=$!
while kill -0 $run 2>/dev/null; do
    # An instance may demand a token for its pages.
    token=$(curl --silent --fail --max-time 2 --request PUT \
        --header 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$service/api/token")
    if curl --silent --fail --max-time 2 --output /dev/null \
        ${token:+--header "X-aws-ec2-metadata-token: $token"} "$notice"; then
        kill -TERM $run # The job is suspended: status 75.
        break
    fi
    sleep "${PAUSE:-5}"
done
wait $run
