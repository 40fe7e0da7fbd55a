#!/usr/bin/env bash
#SBATCH --job-name=adlm
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@180
#
# Train one model on the nodes of a slurm job. Before its time is up it saves, requeues itself and resumes.
#
#   sbatch --nodes=2 --gpus-per-node=8 --time=4:00:00 runs/slurm.sh RECIPE [-- OPTIONS OF adlm train]
#
# RECIPE can be an environment variable instead; runs/README.md has them all.
set -euo pipefail

usage() {
  cat >&2 <<END
slurm.sh: $1
usage: sbatch --nodes=N --time=TIME [--gpus-per-node=G] runs/slurm.sh RECIPE [-- OPTIONS OF adlm train]
Without slurm, runs/nodes.sh starts the same on each machine, and on one machine
torchrun --standalone --nproc-per-node=N -m adlm train RECIPE
END
  exit 2
}

if [[ $# -gt 0 && $1 != -- ]]; then
  RECIPE=$1
  shift
fi
if [[ ${1:-} == -- ]]; then
  shift
elif [[ $# -gt 0 ]]; then
  usage "too many words before --, from '$1' on"
fi
[[ -n ${SLURM_JOB_ID:-} ]] || usage "this is no slurm job (no SLURM_JOB_ID)"
[[ -n ${RECIPE:-} ]] || usage "no RECIPE"

nodes=${SLURM_NNODES:-1}
python=${PYTHON:-python}
processes=${NPROC:-${SLURM_GPUS_ON_NODE:-1}}
cores=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}
threads=$((cores / processes))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}
# srun takes over what sbatch was told of cores only by this name.
if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi
# Where processes share torchrun's own store, they can wait for each other forever after a restart.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# From SIGTERM until torchrun kills: time to finish a step and save, before slurm's own time is up. Older versions of torch
# do not read it and allow 30 s.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-150}

# USR1, which is sent for no other reason, means that time is nearly up; TERM comes with `scancel` too, and a job that was
# cancelled must not come back. The steps are told by scancel: srun answers a TERM of its own by killing them.
out_of_time=0
trap 'out_of_time=$((out_of_time + 1)); scancel --signal=TERM "$SLURM_JOB_ID" || true' USR1
told=$((128 + $(kill -l USR1)))

# A job step in the background, since a shell listens to signals only while it waits; `code` is its exit code.
step() {
  local pid before
  srun "$@" &
  pid=$!
  while
    before=$out_of_time code=0
    wait "$pid" || code=$?
    ((code == told && out_of_time > before)) # that was the signal: the step may still be saving
  do :; done
}

if [[ -n ${PREPARE:-} ]]; then
  step --nodes=1 --ntasks=1 bash -c "$PREPARE"
  if ((code != 0 && out_of_time == 0)); then exit "$code"; fi
fi

if ((out_of_time == 0)); then
  mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
  # One torchrun a node. Which node holds the rendezvous is told, not guessed from names; and the others are not killed
  # where one ends first, since it may be the first that has saved.
  # shellcheck disable=SC2016 # what differs from node to node is filled in there
  step --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --kill-on-bad-exit=0 \
    bash -c 'exec "$0" -m torch.distributed.run --local-addr="$SLURMD_NODENAME" \
      --rdzv-conf="is_host=$((SLURM_NODEID == 0))" "$@"' "$python" \
    --nnodes="$nodes" --nproc-per-node="$processes" --max-restarts="${RESTARTS:-3}" \
    --rdzv-backend=c10d --rdzv-endpoint="${hosts[0]}:${PORT:-$((20000 + SLURM_JOB_ID % 20000))}" \
    --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
    -m adlm train "$RECIPE" ${OUT:+--out "$OUT"} "$@"
  if ((code == 0 || out_of_time == 0)); then exit "$code"; fi
fi

echo "slurm.sh: out of time; the job is requeued and resumes from its last checkpoint"
scontrol requeue "$SLURM_JOB_ID"
