#!/usr/bin/env bash
# Cloud TPU VMs, from one chip to a pod, over gcloud:
#
#   export ZONE=us-central1-a TYPE=v5litepod-8   # and PROJECT, if not gcloud's
#   bash scripts/tpu_vm.sh create NAME [--spot] [--queued]
#   bash scripts/tpu_vm.sh sync NAME
#   bash scripts/tpu_vm.sh run NAME experiments.train --workdir=/mnt/runs/first
#   bash scripts/tpu_vm.sh status NAME
#   bash scripts/tpu_vm.sh logs NAME [WORKER]
#   bash scripts/tpu_vm.sh stop NAME
#   bash scripts/tpu_vm.sh delete NAME
#
# All commands are idempotent: create recreates missing or preempted VMs, run
# starts nothing while a run is active, stop makes it save and exit. Runs are
# detached, on all workers, with logs in ~/selfattn-run on each of them.
# shellcheck disable=SC2016  # single-quoted text expands on the workers
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

fail() {
  echo "tpu_vm.sh: $*" >&2
  exit 2
}

usage() {
  sed -n '4,11s/^#   //p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

(($# >= 2)) || usage
command="$1" name="$2"
shift 2
[[ "$name" =~ ^[a-z]([a-z0-9-]*[a-z0-9])?$ ]] ||
  fail "NAME=$name must be lower-case letters, digits and -, a letter first"
: "${ZONE:?tpu_vm.sh: set ZONE, such as us-central1-a}"
where=(--zone="$ZONE")
[[ -z "${PROJECT:-}" ]] || where+=(--project="$PROJECT")

vm() { gcloud compute tpus tpu-vm "$@" "${where[@]}"; }
queue() { gcloud compute tpus queued-resources "$@" "${where[@]}"; }
on_all() { vm ssh "$name" --worker=all --command="$1"; }
vm_state() { state_of vm 'value(state)'; }
queue_state() { state_of queue 'value(state.state)'; }

# The state of a VM or a request; empty if there is none, and an error if gcloud
# cannot say so.
state_of() {
  local said
  if said="$("$1" describe "$name" --format="$2" 2>&1)"; then
    tail -n 1 <<<"$said" # after warnings
  elif [[ "$said" != *NOT_FOUND* ]]; then
    echo "$said" >&2
    return 1
  fi
}

# The runtime image of a TPU generation.
version_of() {
  case "$1" in
    v2-* | v3-* | v4-*) echo tpu-ubuntu2204-base ;;
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    *) fail "TYPE=$1 is not known; such as v4-8, v5litepod-8, v5p-8, v6e-8" ;;
  esac
}

create() {
  local spot=() queued='' version state
  for argument in "$@"; do
    case "$argument" in
      --spot) spot=(--spot) ;;
      --queued) queued=1 ;;
      *) fail "create does not know $argument; --spot and --queued" ;;
    esac
  done
  : "${TYPE:?tpu_vm.sh: set TYPE, such as v5litepod-8}"
  version="$(version_of "$TYPE")"
  if [[ -n "$queued" ]]; then
    state="$(queue_state)"
    case "$state" in
      '') ;;
      FAILED | SUSPENDED) queue delete "$name" --force --quiet ;;
      SUSPENDING | DELETING) fail "$name is $state; try again when it has ended" ;;
      *)
        echo "$name is queued: $state"
        return
        ;;
    esac
    queue create "$name" --node-id="$name" --accelerator-type="$TYPE" \
      --runtime-version="$version" ${spot[@]+"${spot[@]}"}
    return
  fi
  state="$(vm_state)"
  case "$state" in
    '') ;;
    # A preempted slice must be deleted before it can be recreated.
    PREEMPTED | TERMINATED)
      state="$(queue_state)"
      [[ -z "$state" ]] || fail "$name is of a request, $state; give --queued, or delete it"
      vm delete "$name" --quiet
      ;;
    DELETING) fail "$name is $state; try again when it is gone" ;;
    STOPPED | STOPPING) fail "$name is $state; start it with gcloud, or delete it" ;;
    *)
      echo "$name is there: $state"
      return
      ;;
  esac
  vm create "$name" --accelerator-type="$TYPE" --version="$version" \
    ${spot[@]+"${spot[@]}"}
}

# Copies the files tracked by git, as they are here, and sets up .venv.
sync() {
  local archive
  archive="$(mktemp -d)/selfattn.tar.gz"
  # Once each, also in the middle of a merge; a deleted file then twice, and left out.
  (cd "$root" && { git ls-files -z | sort -zu && git ls-files -dz | sort -zu; } |
    sort -z | uniq -zu | tar --null -czf "$archive" -T -)
  vm scp "$archive" "$name:selfattn.tar.gz" --worker=all
  rm -r "$(dirname "$archive")"
  # uv installs Python, since that of the images is older than 3.11.
  on_all 'set -e
mkdir -p ~/selfattn && cd ~/selfattn && touch .synced
# What an earlier sync brought and this one does not would still be imported.
tar -tzf ~/selfattn.tar.gz | sort >.synced.new
comm -23 .synced .synced.new | tr "\n" "\0" | xargs -0 rm -f
tar -xzf ~/selfattn.tar.gz && mv .synced.new .synced
command -v ~/.local/bin/uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
JAX_BUILD=tpu bash ~/selfattn/scripts/run.sh python --version'
}

run() {
  (($# > 0)) || fail 'run needs what to run, such as experiments.train'
  local line
  line="$(printf '%q ' "$@")"
  # Detached, so that it survives a lost connection, and locked, since gcloud
  # repeats the command after one.
  on_all "mkdir -p ~/selfattn-run && cd ~/selfattn-run
if flock -n lock true; then
  rm -f code
  JAX_BUILD=tpu setsid nohup flock -n lock bash -c '
    echo \$\$ >pid
    bash ~/selfattn/scripts/run.sh \"\$@\" & child=\$!
    trap \"kill -TERM \$child\" TERM
    while :; do wait \$child; code=\$?; kill -0 \$child 2>/dev/null || break; done
    echo \$code >code' run $line </dev/null >>log 2>&1 &
  echo started on \$(hostname)
else
  echo runs already on \$(hostname)
fi"
}

status() {
  local state queued
  state="$(vm_state)"
  echo "$name: ${state:-not there}"
  if [[ "$state" != READY ]]; then
    queued="$(queue_state)"
    echo "queue: $queued"
    return
  fi
  on_all 'cd ~/selfattn-run 2>/dev/null || { echo "$(hostname): nothing was run"; exit; }
if flock -n lock true; then
  echo "$(hostname): ended with exit code $(cat code 2>/dev/null || echo unknown)"
else
  echo "$(hostname): running"
fi'
}

logs() {
  vm ssh "$name" --worker="${1:-0}" --command='tail -n 100 ~/selfattn-run/log'
}

stop() {
  on_all 'cd ~/selfattn-run 2>/dev/null && ! flock -n lock true && kill -TERM "$(cat pid)" && echo "$(hostname): told to save and exit" || echo "$(hostname): nothing runs"'
}

delete() {
  local queued state
  queued="$(queue_state)"
  [[ -z "$queued" ]] || queue delete "$name" --force --quiet
  # That of a request is deleted with it; another one of its name is not.
  state="$(vm_state)"
  [[ -z "$state" ]] || vm delete "$name" --quiet
  [[ -n "$queued$state" ]] || echo "$name is not there"
}

case "$command" in
  create | sync | run | status | logs | stop | delete) "$command" "$@" ;;
  *) usage ;;
esac
