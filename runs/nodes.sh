#!/usr/bin/env bash
# Train one model on several machines: the same command on each of them, with its own NODE_RANK.
#
#   runs/nodes.sh RECIPE NODES NODE_RANK FIRST_HOST [PORT] [-- OPTIONS OF adlm train]
#
# Each of the five can be an environment variable instead; runs/README.md has them all.
set -euo pipefail

usage() {
  cat >&2 <<END
nodes.sh: $1
usage: runs/nodes.sh RECIPE NODES NODE_RANK FIRST_HOST [PORT] [-- OPTIONS OF adlm train]
  RECIPE      by name (adlm recipes), or the config.json of a run
  NODES       how many machines
  NODE_RANK   the number of this one, from 0
  FIRST_HOST  name or address of machine 0, as the others see it
  PORT        a free one on machine 0; ${PORT:-29500} by default
END
  exit 2
}

for name in RECIPE NODES NODE_RANK FIRST_HOST PORT; do
  if [[ $# -gt 0 && $1 != -- ]]; then
    printf -v "$name" %s "$1"
    shift
  fi
done
if [[ ${1:-} == -- ]]; then
  shift
elif [[ $# -gt 0 ]]; then
  usage "too many words before --, from '$1' on"
fi
for name in RECIPE NODES NODE_RANK FIRST_HOST; do
  [[ -n ${!name:-} ]] || usage "no $name"
done
for name in NODES NODE_RANK; do
  [[ ${!name} =~ ^[0-9]+$ ]] || usage "$name is '${!name}', not a number"
done
((NODE_RANK < NODES)) || usage "NODE_RANK is $NODE_RANK, but $NODES nodes are numbered from 0 to $((NODES - 1))"

python=${PYTHON:-python}
processes=${NPROC:-$("$python" -c 'import torch; print(max(1, torch.cuda.device_count()))' 2>/dev/null)} ||
  usage "$python has no torch: activate its environment, or set PYTHON"
cores=$(OMP_NUM_THREADS='' nproc)
threads=$((cores / processes))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}
# Where processes share torchrun's own store, as they do with --master-addr, they can wait for each other forever after a
# restart. So each round of them has a new one.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# From SIGTERM until torchrun kills: time to finish a step and save. Older versions of torch know only their 30 seconds.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-150}

exec "$python" -m torch.distributed.run \
  --nnodes="$NODES" --nproc-per-node="$processes" --max-restarts="${RESTARTS:-3}" \
  --rdzv-backend=c10d --rdzv-endpoint="$FIRST_HOST:${PORT:-29500}" --rdzv-id=adlm \
  --rdzv-conf="is_host=$((NODE_RANK == 0)),read_timeout=600" ${LOCAL_ADDR:+--local-addr="$LOCAL_ADDR"} \
  -m adlm train "$RECIPE" ${OUT:+--out "$OUT"} "$@"
