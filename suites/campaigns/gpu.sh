#!/usr/bin/env bash
# What a GPU has to show, each part a record in ledgers/local: correctness first, then speed under every budget. From the
# repository's root, after `cargo build --release` and `cargo test --release --no-run`; some parts may be named alone:
#
#   suites/campaigns/gpu.sh                      everything, about a quarter of an hour
#   suites/campaigns/gpu.sh kernels engine       these two
#
# On a machine without cargo name the binaries: ASSAY, KERNELS_CUDA and ENGINE_CUDA (the crates' tests `cuda`). The full-size witness
# takes a Python that has what witness/capture/requirements.txt names: WITNESS_PYTHON. Without one it is not run.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ASSAY=${ASSAY:-target/release/assay}
newest() { ls -t target/release/deps/cuda-* 2>/dev/null | grep -v '\.d$' | while read -r file; do
    "$file" --list 2>/dev/null | grep -q "$1" && echo "$file" && break; done; }
KERNELS_CUDA=${KERNELS_CUDA:-$(newest '^\[cuda\] decode::')}
ENGINE_CUDA=${ENGINE_CUDA:-$(newest '^\[cuda\] exact::')}
MODEL=qwen3-30b-a3b
CONFIG=$MODEL-synthetic
logs=ledgers/local/campaign
mkdir -p "$logs"
failed=0

# Runs a part, keeps what it prints, and says how it ended: 0 PASS, 1 FAIL, 3 INCOMPLETE, 4 INVALID.
part() { # NAME COMMAND…
    local name=$1 start=$SECONDS code
    shift
    "$@" >"$logs/$name.txt" 2>"$logs/$name.stderr"
    code=$?
    [ "$code" = 0 ] || failed=1
    printf '%-34s exit %d, %d s\n' "$name" "$code" $((SECONDS - start))
}
keep() { # NAME COMMAND…: its outcome as a record
    local name=$1
    shift
    part "$name" "$ASSAY" ledger record --name "$name" -- "$@"
}

doctor() { part doctor "$ASSAY" doctor; }
roofline() { part roofline "$ASSAY" roofline --output json; }
kernels() { keep kernels-against-twins "$KERNELS_CUDA"; }
engine() { keep engine-against-host "$ENGINE_CUDA"; }
sanitizers() {
    local tool case
    for tool in memcheck racecheck; do
        for case in "short::qwen3_moe-a" "short::gpt_oss-b" "tensor::tiny-moe, int4"; do
            keep "$tool-${case//[^a-z0-9_-]/-}" compute-sanitizer --tool "$tool" --error-exitcode 9 "$ENGINE_CUDA" "$case"
        done
    done
}
witness() {
    local config prefill
    for config in tiny-moe-bf16 tiny-moe; do
        for prefill in exact tensor; do
            part "witness-$config-$prefill" "$ASSAY" reference-test "$config" --device cuda --prefill "$prefill" --vram 2GiB
        done
    done
}
perplexity() {
    local config prefill
    for config in tiny-moe-bf16 tiny-moe; do
        for prefill in exact tensor; do
            part "perplexity-$config-$prefill" "$ASSAY" perplexity "$config" --device cuda --prefill "$prefill" --vram 2GiB
        done
    done
}
# What each format of the experts costs, and that integer KV and INT8 run at all.
precisions() {
    local experts kv
    for experts in bf16 int8 int4; do
        part "perplexity-experts-$experts" "$ASSAY" perplexity tiny-moe --experts "$experts" --no-heatmap $([ "$experts" = int4 ] && echo --expert-quantization search) \
            --device cuda --prefill tensor --vram 2GiB
    done
    for kv in int8 int6 int4; do
        part "perplexity-kv-$kv" "$ASSAY" perplexity tiny-moe --kv "$kv" --no-heatmap --device cuda --prefill tensor --vram 2GiB
    done
}
# Out of memory at every allocation, refused budgets, low-water marks: the host device can fail any of them, the card's budget is real.
memory() { keep memory "$ENGINE_CUDA" memory::; }
synth() {
    [ -e "models/$MODEL/routing.json" ] && return
    part synth "$ASSAY" synth "$MODEL" --out "models/$MODEL"
    part synth-check "$ASSAY" synth check "models/$MODEL" --device cuda
}
# Five processes of their own, one answer.
fresh() {
    synth
    keep five-fresh-processes bash -c 'for run in 1 2 3 4 5; do '"$ASSAY"' synth answers models/'$MODEL' --device cuda --output json \
        | sha256sum; done | sort | uniq -c | tee /dev/stderr | awk "{ n++; c = \$1 } END { exit !(n == 1 && c == 5) }"'
}
# llama.cpp on the same weights: the first token after 8 prompts and the ten likeliest.
llama() {
    local python=${WITNESS_PYTHON:-witness/capture/venv/bin/python} gguf=cache/$MODEL.gguf
    if ! "$python" -c 'import xllamacpp' 2>/dev/null; then
        echo "llama                              not run: no Python with xllamacpp; WITNESS_PYTHON names one"
        return
    fi
    synth
    [ -e "$gguf" ] || part llama-export "$ASSAY" export gguf "models/$MODEL" "$gguf" --dtype q4-0
    part llama-answers "$ASSAY" synth answers "models/$MODEL" --device cuda --output json
    keep llama-first-tokens "$python" witness/capture/synthetic.py "$gguf" "$logs/llama-answers.txt" --threads "$(nproc)"
}
budgets() {
    local vram
    synth
    for vram in 24GiB 16GiB 12GiB; do
        part "speed-$vram" "$ASSAY" benchmark "$CONFIG" --suite suites/speed/gpu.toml --vram $vram
        part "layers-$vram" "$ASSAY" benchmark "$CONFIG" --suite suites/speed/gpu-layers.toml --vram $vram
    done
    part speed-8GiB-none "$ASSAY" benchmark "$CONFIG" --suite suites/speed/gpu.toml --vram 8GiB --max-resident-share 0
    part depth-24GiB "$ASSAY" benchmark "$CONFIG" --suite suites/speed/gpu-depth.toml --vram 24GiB
}
shares() {
    local share
    synth
    for share in 0.25 0.5 0.75; do
        part "speed-share-$share" "$ASSAY" benchmark "$CONFIG" --suite suites/speed/gpu-decode.toml --vram 24GiB --max-resident-share $share
    done
}

[ $# -gt 0 ] || set -- doctor roofline kernels engine memory sanitizers witness perplexity precisions fresh llama budgets shares
for name in "$@"; do
    case $name in
        doctor|roofline|kernels|engine|memory|sanitizers|witness|perplexity|precisions|synth|fresh|llama|budgets|shares) $name ;;
        *) echo "$0: no part is called $name" >&2; exit 2 ;;
    esac
done
exit $failed
