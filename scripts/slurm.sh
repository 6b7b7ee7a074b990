#!/usr/bin/env bash
# One run on the nodes of a Slurm job; asked to leave, it saves and is requeued:
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

# Where sbatch was called: Slurm runs a copy of this file from elsewhere.
root="${SLURM_SUBMIT_DIR:-$PWD}"
child='' caught=0 early='' asked=''
# shellcheck disable=SC2329  # called by the traps
pass_on() {
  caught=1 asked=1
  if [[ -n "$child" ]]; then kill -s "$1" "$child" 2>/dev/null; else early="$1"; fi
  return 0
}
trap 'pass_on USR1' USR1
trap 'pass_on TERM' TERM

# A task that ends early ends the others, who would wait for it.
srun --kill-on-bad-exit=0 bash "$root/scripts/run.sh" "$@" &
# A signal is lost on a shell that has not become srun yet.
sleep 1
child=$!
# One that came before it was known whom to pass it on to.
[[ -z "$early" ]] || pass_on "$early"
while :; do
  caught=0
  wait "$child"
  code=$?
  ((caught)) || break # a signal cuts the waiting short
done
# Whatever ends by such a signal had not come so far that it could save.
if [[ -n "$asked" ]] && ((code == 128 + $(kill -l USR1) || code == 128 + $(kill -l TERM))); then
  code=75
fi
if ((code == 75 && ${SLURM_RESTART_COUNT:-0} < ${MAX_RESTARTS:-50})); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
