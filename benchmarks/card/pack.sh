#!/bin/bash
# Pack what a bare machine with one GPU, Python 3.12 and torch 2.11 lacks, in pieces of at most 64 MiB beside the tree.
#     bash benchmarks/card/pack.sh [--old COMMIT] [--vllm] [--into CHECKOUT] [--python PYTHON]
# .card/base: wheels, and with --old the src of that commit. --vllm: vLLM 0.26.0 without what a Hopper GPU does not use.
# --into: another checkout will travel; .card/base then has a copy of this one's HEAD. Needs pip, git and xz.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
old= vllm= into=$root python=python3
while [ $# -gt 0 ]; do
  case $1 in --old) old=$2; shift;; --vllm) vllm=1;; --into) into=$(cd "$2" && pwd); shift;; --python) python=$2; shift;; *) sed -n 2,6p "$0"; exit 2;; esac; shift
done
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mugrpo-card; mkdir -p "$cache"
out=$into/.card base=$into/.card/base; rm -rf "$base"; mkdir -p "$base/whl"
exclude=$(cd "$into" && git rev-parse --path-format=absolute --git-path info/exclude); mkdir -p "$(dirname "$exclude")"
grep -qsx '/.card/' "$exclude" || echo '/.card/' >>"$exclude"
FOR_THERE=(--no-deps --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for n in 2_35 2_34 2_31 2_28 2_27 2_26 2_24 2_17; do FOR_THERE+=(--platform "manylinux_${n}_x86_64"); done
fetch() { local to=$1; shift; "$python" -m pip download -q --disable-pip-version-check "${FOR_THERE[@]}" -d "$to" "$@" 2>&1 | grep -v -i "warning\|notice" || true; }
# What mugrpo needs beside torch, transformers, numpy and pyarrow; altair only draws reports, which are made elsewhere.
[ -e "$cache/whl/ready" ] || { fetch "$cache/whl" pydantic==2.14.4 pydantic-core==2.50.5 annotated-types typing-inspection math-verify==0.9.0 latex2sympy2-extended==1.11.0 antlr4-python3-runtime==4.13.2; touch "$cache/whl/ready"; }
cp "$cache"/whl/*.whl "$base/whl/"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/pyproject.toml" | head -1)
mkdir -p "$base/mugrpo-$version.dist-info"   # commands ask for their own version
printf 'Metadata-Version: 2.1\nName: mugrpo\nVersion: %s\n' "$version" >"$base/mugrpo-$version.dist-info/METADATA"
[ -z "$old" ] || { mkdir "$base/old"; git -C "$root" archive "$old" src | tar -x -C "$base/old"; }
[ "$into" = "$root" ] || { mkdir "$base/main"; git -C "$root" archive HEAD src tests benchmarks configs pyproject.toml README.md | tar -x -C "$base/main"; }
bytes() { du -sb "$1" | cut -f1; }
tree=$(cd "$into" && git ls-files -co --exclude-standard -z | xargs -0 du -cb --no-dereference 2>/dev/null | awk '/total$/ {s += $1} END {print s}')
room=$((64 * 1048576 - tree - $(bytes "$base") - 786432))
if [ -n "$vllm" ]; then
  slim=$cache/vllm-0.26.0
  if [ ! -e "$cache/vllm.tar.xz" ]; then
    rm -rf "$slim"; fetch "$cache/vw" vllm==0.26.0
    fetch "$cache/vw" cachetools==8.0.2 cbor2==6.3.0 httpx2==2.16.2 llguidance==1.7.6 msgspec==0.22.0 openai==3.57.0 openai-harmony==0.0.8 pybase64==1.5.1 pyzmq==27.3.0 sniffio==1.3.1
    "$python" - "$cache/vw" "$slim" <<'PY'
import pathlib, sys, zipfile
wheels, slim = map(pathlib.Path, sys.argv[1:])
# FlashAttention 2 (Hopper has 3), kernels of experts, of Blackwell and of other quantizations, the server in Rust.
LEFT = ("_vllm_fa2_C", "_moe_C", "/fmha_sm100/", "third_party/deep_gemm/", "_flashmla_C", "_flashmla_extension_C", "_qutlass_C", "vllm-rs", "swagger", ".jpg")
for wheel in wheels.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(slim, [n for n in archive.namelist() if not any(part in n for part in LEFT)])
stub = slim / "xgrammar"  # vLLM names its classes when it is imported; only structured output uses them (45 MB)
stub.mkdir()
(stub / "__init__.py").write_text('__version__ = "0.0"\n\n\ndef __getattr__(name):\n    if name.startswith("__"):\n        raise AttributeError(name)\n    return type(name, (), {})\n')
PY
    tar -C "$slim" -cf - . | xz -6 -T0 >"$cache/vllm.tar.xz.new"; mv "$cache/vllm.tar.xz.new" "$cache/vllm.tar.xz"
  fi
  rm -rf "$out"/vllm-*
  size=$(bytes "$cache/vllm.tar.xz"); count=$(((size + room - 1) / room))
  split -d -a 2 -b $(((size + count - 1) / count)) "$cache/vllm.tar.xz" "$cache/piece."
  n=0; for piece in "$cache"/piece.*; do n=$((n + 1)); mkdir -p "$out/vllm-0$n"; mv "$piece" "$out/vllm-0$n/piece"; done
fi
echo "the tree $((tree / 1048576)) MiB of 64, base $(($(bytes "$base") / 1048576)), room for a piece $((room / 1048576)) MiB"
du -sm "$out"/* | awk '{sub(".*/", "", $2); print "   .card/" $2, $1, "MiB"}'
