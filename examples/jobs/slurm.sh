#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A job of Slurm that goes on after its time limit, a preemption, or the loss of its nodes:
#   sbatch slurm.sh ./app
#SBATCH --nodes=2 --ntasks-per-node=4 --time=04:00:00
#SBATCH --requeue --open-mode=append --no-kill
#SBATCH --signal=B:TERM@120
images=${SCRATCH:-$PWD}/$SLURM_JOB_NAME.images

# SIGTERM, two minutes before the end, suspends the job. --time-limit does the same earlier, if images take long.
resurgo run --checkpoint-dir "$images" --checkpoint-every 10m --resume-if-any --time-limit slurm --grace 90s "$@" &
run=$!
trap 'kill -TERM $run' TERM
# The signal ends a wait, but not the job. The last wait has the status.
while kill -0 $run 2>/dev/null; do
    wait $run
done
wait $run
status=$?

# 75: the job is suspended. Slurm runs this script again, which goes on with it.
[ $status -eq 75 ] && scontrol requeue "$SLURM_JOB_ID"
exit $status
