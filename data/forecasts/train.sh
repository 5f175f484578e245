#!/usr/bin/env bash
# Train the Forecast of SmolLM2-135M: 5,120 sequences of 8,192 tokens, three seeds side by side.
#   data/forecasts/train.sh              on one GPU
#   GPUS=2 data/forecasts/train.sh       on two; of several machines, run accelerate's launcher on each
# A run that was stopped goes on where it was: start it again. Further options go to `sparda train`.
set -euo pipefail
cd "$(dirname "$0")/../.."
gpus=${GPUS:-1} out=${OUT:-build/forecast} corpus=build/corpus
[ -f "$corpus/train.npy" ] || python3 -m sparda.corpus "$corpus"
launch=(python3 -m sparda)
[ "$gpus" = 1 ] || launch=(accelerate launch --multi_gpu --num_processes "$gpus" --mixed_precision no -m sparda)
"${launch[@]}" train --text "$corpus/train.npy" --held-out "$corpus/held_out.npy" --out "$out" \
  --rounds 16 --sequences 320 --passes 4 --budget 16 --local 4 --seeds 0,1,2 "$@"
