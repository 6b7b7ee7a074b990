#!/usr/bin/env bash
# Sets up .venv on first use, then runs a module or a tool inside it:
#
#   bash scripts/run.sh experiments.train --workdir=runs/first
#   bash scripts/run.sh pytest
#   bash scripts/run.sh pip install 'jax[tpu]'
#
# PYTHON=/path/to/python is the interpreter (3.11 or newer) of a new environment;
# SELFATTN_VENV=FOLDER the environment, if not .venv;
# JAX_BUILD=cpu|cuda12|cuda13|tpu overrides the build picked for this machine.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${SELFATTN_VENV:-$root/.venv}"
[[ "$venv" == /* ]] || venv="$PWD/$venv"
venv="${venv%/}"
lock="$root/requirements.txt"

# Where the installer of uv puts it.
PATH="$PATH:${HOME:-/}/.local/bin"

fail() {
  echo "run.sh: $*" >&2
  exit 2
}

jax_build() {
  if [[ -n "${JAX_BUILD:-}" ]]; then
    [[ "$JAX_BUILD" =~ ^(cpu|cuda12|cuda13|tpu)$ ]] ||
      fail "JAX_BUILD=$JAX_BUILD is not cpu, cuda12, cuda13 or tpu"
    echo "$JAX_BUILD"
  elif compgen -G '/dev/accel*' >/dev/null || [[ -n "${TPU_NAME:-}" ]]; then
    echo tpu
  elif [[ -e /dev/nvidiactl ]]; then
    echo cuda12
  else
    echo cpu
  fi
}

is_recent() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local candidate
  if [[ -n "${PYTHON:-}" ]]; then
    is_recent "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11 or newer"
    echo "$PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python; do
    if is_recent "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  if command -v uv >/dev/null; then
    echo 3.12 # downloaded by uv
    return
  fi
  fail 'no Python 3.11 or newer found; install one or set PYTHON'
}

install() {
  local build="$1" stamp="$2" python extra=()
  [[ "$build" == cpu ]] || extra=("jax[$build]")
  echo "run.sh: setting up ${venv#"$root/"} for jax on $build (once)" >&2
  rm -f "$stamp"
  python="$(find_python)"
  if command -v uv >/dev/null; then
    [[ -x "$venv/bin/python" ]] || uv venv --quiet --python "$python" "$venv"
    VIRTUAL_ENV="$venv" uv pip install --quiet -r "$lock" ${extra[@]+"${extra[@]}"} >&2
  else
    [[ -x "$venv/bin/python" ]] || "$python" -m venv --clear "$venv" ||
      fail "'$python -m venv' failed; on Debian: apt-get install python3-venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
      -r "$lock" ${extra[@]+"${extra[@]}"} >&2
  fi
  cp "$lock" "$stamp"
}

(($# > 0)) || fail 'usage: bash scripts/run.sh MODULE|TOOL [arguments]'

build="$(jax_build)"
stamp="$venv/installed-$build"
if ! cmp -s "$lock" "$stamp"; then
  mkdir -p "$(dirname "$venv")"
  (
    # Concurrent first launches: one installs, the others wait.
    if command -v flock >/dev/null; then flock 9; fi
    cmp -s "$lock" "$stamp" || install "$build" "$stamp"
  ) 9>"$venv.lock"
fi

# Every step allocates and frees large buffers, whose pages the kernel clears: with
# pages of 4 KiB, a third of the time on a CPU. What is freed stays with the process, or
# some processes, by chance, return it to the kernel in every step.
malloc=glibc.malloc.hugetlb=1
# Older versions may refuse so high a threshold, and keep their first one of 128 KiB,
# since trim_threshold ends its adjustment.
if printf 'glibc 2.36\n%s\n' "$(getconf GNU_LIBC_VERSION 2>/dev/null)" |
  sort -V -C 2>/dev/null; then
  malloc+=:glibc.malloc.mmap_threshold=$((1 << 30)):glibc.malloc.trim_threshold=$((1 << 32))
fi
export GLIBC_TUNABLES="${GLIBC_TUNABLES-$malloc}"
# Compiled programs are cached in .venv, separately for each kind of CPU.
features="$({ grep -m1 -E '^(flags|Features)' /proc/cpuinfo 2>/dev/null || true; } | cksum)"
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$venv/compiled-${features%% *}}"
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="${JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS:-0.1}"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
name="$1"
shift
case "$name" in
  # -P: no file of the working folder hides a module of Python.
  experiments.* | tests.*) exec "$venv/bin/python" -P -m "$name" "$@" ;;
  pip)
    # Extras, constrained to locked versions; an environment of uv has no pip.
    [[ "${1:-}" != install ]] || set -- "$@" -c "$lock"
    if [[ -x "$venv/bin/pip" ]]; then exec "$venv/bin/python" -m pip "$@"; fi
    VIRTUAL_ENV="$venv" exec uv pip "$@"
    ;;
  # As modules: the first lines of scripts name the folder of their installation.
  basedpyright | pytest | ruff) cd "$root" && exec "$venv/bin/python" -P -m "$name" "$@" ;;
  *) exec "$venv/bin/$name" "$@" ;;
esac
