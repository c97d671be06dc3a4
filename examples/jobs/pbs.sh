#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A job of PBS that goes on after its time limit, or the loss of its nodes:
#   qsub -v APP=./app pbs.sh
#PBS -N app
#PBS -r y
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=04:00:00
cd "$PBS_O_WORKDIR" || exit
images=${SCRATCH:-$PWD}/$PBS_JOBNAME.images

# The job is suspended two minutes before the four hours are over.
resurgo run --checkpoint-dir "$images" --checkpoint-every 10m --resume-if-any --time-limit 4h --grace 90s "$APP"
status=$?

# 75: the job is suspended. Another job of PBS goes on with it.
[ $status -eq 75 ] && qsub -v APP="$APP" pbs.sh
exit $status
