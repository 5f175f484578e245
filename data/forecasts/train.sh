#!/usr/bin/env bash
# Train the Forecast of SmolLM2-135M on sequences of 8,192 tokens, three seeds side by side, in two phases: first to
# the attention mass of all blocks (5,120 sequences), then to the mass that the choice misses (1,600).
#   data/forecasts/train.sh              on one GPU: 9 minutes of an H200
#   GPUS=2 data/forecasts/train.sh       on two; of several machines, run accelerate's launcher on each
# A run that was stopped goes on where it was: start it again. Further options go to `sparda train`, in both phases.
set -euo pipefail
cd "$(dirname "$0")/../.."
gpus=${GPUS:-1} out=${OUT:-build/forecast} corpus=build/corpus
[ -f "$corpus/train.npy" ] || python3 -m sparda.corpus "$corpus"
launch=(python3 -m sparda)
[ "$gpus" = 1 ] || launch=(accelerate launch --multi_gpu --num_processes "$gpus" --mixed_precision no -m sparda)
common=(--text "$corpus/train.npy" --held-out "$corpus/held_out.npy" --sequences 320 --budget 16 --local 4 --seeds 0,1,2)
"${launch[@]}" train "${common[@]}" --out "$out/divergence" --rounds 16 --passes 4 "$@"
"${launch[@]}" train "${common[@]}" --out "$out" --init "$out/divergence" --objective recall --softness 0.25 \
  --lr 0.002 --rounds 5 --passes 2 "$@"
