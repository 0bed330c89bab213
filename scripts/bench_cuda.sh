#!/usr/bin/env bash
# What the efficiency suite has to say about a CUDA device: speed and memory of the shapes of Llama-3-8B and
# Llama-2-13B with random weights, the PyramidInfer paper's points, and with LATENCY=1 the PyramidKV paper's.
#
#   scripts/bench_cuda.sh                  everything; the same command goes on where it stopped
#   SMALL=1 scripts/bench_cuda.sh          the same commands with a tiny model and tiny sizes, on any machine
#
# OUT=FOLDER is where runs, tables and figures go, PYTHON=... what runs them. What does not fit into memory is a row
# of the tables; of every other failure the script says so at its end, with exit code 1.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-.venv/bin/python}
out=${OUT:-results/cuda}
tiny=() papers=()
if [ -n "${SMALL:-}" ]; then
    shape=model.checkpoint.architecture
    tiny=(model.device=cpu model.dtype=float32 "$shape.hidden_size=64" "$shape.intermediate_size=128"
        "$shape.num_hidden_layers=2" "$shape.num_attention_heads=4" "$shape.num_key_value_heads=2"
        "$shape.vocab_size=300" suite.repeats=1 suite.warmups=0)
    models=(llama3_8b_instruct) methods=fullkv,pyramidkv graphs=pyramidkv,snapkv
    lengths=[40] batches=[1,2] new=[3] budget=16
    papers=("suite.lengths=[40]" "suite.batches=[2]" "suite.new_tokens=[3]" suite.memory_gib=null)
    infer=(budget=0.9) latency=(budget=16)
else
    models=(llama3_8b_instruct llama2_13b_chat) methods=fullkv,streamingllm,h2o,snapkv,pyramidkv
    graphs=fullkv,snapkv,pyramidkv lengths=[512,4096,7500] batches=[1,8] new=[128] budget=128,1024
    infer=() latency=()
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
        { echo "torch sees no CUDA device here; SMALL=1 tries the commands without one" >&2; exit 2; }
fi

# Exit code 1 says that some points failed, which at the end is looked into.
measure() {
    echo "== $*" >&2
    "$python" run.py -m "$@" "${tiny[@]}" "results_dir=$out" || [ $? -eq 1 ]
}

for model in "${models[@]}"; do
    # Llama-2 was made for 4,096 positions
    [ "$model" = llama3_8b_instruct ] || lengths=${lengths/4096,7500/3500}
    sizes=("model=$model" model.weights=random "budget=$budget" "suite.lengths=$lengths" "suite.batches=$batches"
        "suite.new_tokens=$new")
    measure suite=efficiency "method=$methods" "${sizes[@]}"
    measure suite=efficiency "method=$graphs" suite.decode=graph "${sizes[@]}"
done
measure experiment=pyramidinfer_table "${papers[@]}" "${infer[@]}"
if [ -n "${LATENCY:-}" ]; then
    measure experiment=pyramidkv_latency "${papers[@]}" "${latency[@]}"
fi

"$python" -m scripts.report tables "runs=$out" "out=$out/tables"
"$python" -m scripts.report figures "runs=$out" "out=$out/figures"

"$python" - "$out" <<'PYTHON'
import sys
from evaluation.results import load_runs

fine = (None, "memory exhausted")
runs = load_runs(sys.argv[1])
failed = [run.key for run in runs if run.summary is None or any(each["error"] not in fine for each in run.records)]
sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
PYTHON
