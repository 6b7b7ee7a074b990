#!/usr/bin/env bash
# One run on the nodes of a Slurm job; when preempted, it saves and is requeued:
#
#   sbatch --nodes=2 --gpus-per-node=4 scripts/slurm.sh \
#       experiments.train --config=configs/trec.py --workdir=/shared/runs/trec
#
#SBATCH --job-name=selfattn
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
set -uo pipefail

# Slurm runs a copy of this file; sbatch was called in the repository.
root="${SLURM_SUBMIT_DIR:-$PWD}"
child='' caught=0 early='' preempted=''
# shellcheck disable=SC2329  # called by the traps
pass_on() {
  caught=1 preempted=1
  if [[ -n "$child" ]]; then kill -s "$1" "$child" 2>/dev/null; else early="$1"; fi
  return 0
}
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM

# When a task ends early, the others end by themselves (--peer_timeout).
# srun does not inherit --cpus-per-task since Slurm 22.05.
srun --kill-on-bad-exit=0 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} bash "$root/scripts/run.sh" "$@" &
# A signal to the subshell would be lost before it executes srun.
sleep 1
child=$!
# A signal that arrived before the process id of srun was known.
[[ -z "$early" ]] || pass_on "$early"
while :; do
  caught=0
  wait "$child"
  code=$?
  ((caught)) || break # a signal interrupts `wait`
done
# Killed by the signal before its handlers were installed: nothing to save.
if [[ -n "$preempted" ]] && ((code == 128 + $(kill -l USR1) || code == 128 + $(kill -l TERM))); then
  code=75
fi
if ((code == 75 && ${SLURM_RESTART_COUNT:-0} < ${MAX_RESTARTS:-50})); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
