#!/bin/bash
# A run on several machines under Slurm: each stage is generated, scored and optimized in turn.
#
#     sbatch --nodes 2 --gpus-per-node 8 scripts/slurm.sh configs/mine.toml runs/mine 4
#
# The arguments are the config, the run's directory on storage that all machines share, and the
# number of stages. In the config, set engine.processes to the GPUs of the first machine, which
# generates, and distributed.replicas to the number of machines. A job that is killed and submitted
# again goes on where it was. A test runs this with stand-ins for srun and scontrol, two "machines" on
# one; we had no such cluster.

#SBATCH --ntasks-per-node=1

set -eu
config=$1 run=$2 stages=$3
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
ranks=${SLURM_GPUS_ON_NODE:-1}

for stage in $(seq 0 $((stages - 1))); do
  for phase in generate score; do
    srun --nodes 1 --ntasks 1 --nodelist "$head" \
      mugrpo "$phase" "$config" --run-dir "$run" --stage "$stage"
  done
  srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$ranks" \
    --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID-$stage" \
    --no-python mugrpo optimize "$run" --stage "$stage"
done
