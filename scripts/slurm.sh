#!/bin/bash
# A run on several machines under Slurm: the first one generates, and all of them make the updates.
#
#     sbatch --nodes 2 --gpus-per-node 8 scripts/slurm.sh configs/mine.toml runs/mine
#
# The arguments are the config and the run's directory, on storage that all machines share. In the
# config, set engine.processes to the GPUs of the first machine. The ranks are started once and end with the run. A job that is killed and
# submitted again goes on where it was. If a machine has several networks, export GLOO_SOCKET_IFNAME
# and NCCL_SOCKET_IFNAME first (docs/engines.md). Tests run this with stand-ins for Slurm's
# commands; we had no such cluster.

#SBATCH --ntasks-per-node=1
#SBATCH --exclusive

set -eu
config=$1 run=$2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ranks=${SLURM_GPUS_ON_NODE:-1} others=$((SLURM_NNODES - 1))

# Without a number of CPUs, Slurm gives a task one, on which all ranks of a machine would take turns.
if [ "$others" -gt 0 ]; then
  srun --nodes "$others" --ntasks "$others" --exclude "$head" \
    --cpus-per-task "$SLURM_CPUS_ON_NODE" \
    torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$ranks" \
    --rdzv-backend c10d --rdzv-endpoint "$head:29500" \
    --rdzv-conf join_timeout=1800,read_timeout=1800 \
    --no-python mugrpo optimize "$run" --follow &
fi
mugrpo train "$config" --run-dir "$run" --distributed.machines "$SLURM_NNODES" \
  --distributed.processes "$ranks" --distributed.address "$head:29500"
wait
