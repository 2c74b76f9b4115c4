#!/bin/bash
# Makes the virtual environment (`make setup`), or makes sure that it is the one these requirements ask for.
# May be interrupted at any point: the stamp is written last, only a stamp of the same content counts, and what an
# unfinished run left is made anew.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
python=${PYTHON:-python3}
stamp=$venv/.dspark-setup
unfinished=$venv/.dspark-setup-unfinished

refuse() {
    echo "setup: $1" >&2
    exit 2
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || refuse "$python does not run; set PYTHON"
case $version in
    3.10 | 3.11 | 3.12 | 3.13) ;;
    *) refuse "$python is Python $version; 3.10 to 3.13 is needed, set PYTHON" ;;
esac

wanted=$({ cat requirements/*.txt pyproject.toml build/setup.sh; "$python" --version; pwd; } | sha256sum | cut -d ' ' -f 1)
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$venv/bin/python" -c 'import dspark, dspark_client' 2>/dev/null; then
    exit 0
fi
rm -f "$stamp"
if [ -e "$unfinished" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    "$python" -m venv "$venv" || refuse "$python cannot make virtual environments (Debian: install python3-venv)"
fi
touch "$unfinished"

cat <<'MESSAGE'
setup: installing into the virtual environment. To be downloaded, unless pip has it already:
    about 465 MB of packages besides torch
    torch: 192 MB as a CPU build. A package index may offer a CUDA build instead, with several GB of
    libraries that nothing here uses; PIP_EXTRA_INDEX_URL can name an index that has the CPU build.
Later, 'dspark prepare' (part of 'make serve' and 'make test') downloads the default model: 93 MB.
MESSAGE
pip=("$venv/bin/python" -m pip --disable-pip-version-check install)
"${pip[@]}" -r requirements/serve.txt -r requirements/build.txt -r requirements/dev.txt -r requirements/gpu-check.txt
"${pip[@]}" --no-deps -r requirements/triton.txt
"${pip[@]}" "$(sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml)"
"${pip[@]}" --no-deps --no-build-isolation -e .

# perf_analyzer, of the Triton client's wheel, wants two libraries that the server's wheel has under other names.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ "$(head -c 2 "$venv/bin/perf_analyzer")" != '#!' ]; then
    own=$venv/lib/perf_analyzer
    mkdir -p "$own"
    ln -sf "$site"/nvidia_pytriton.libs/libcudart-*.so.12* "$own/libcudart.so.12"
    ln -sf "$site"/nvidia_pytriton.libs/libb64-*.so.0d "$own/libb64.so.0d"
    mv "$venv/bin/perf_analyzer" "$own/perf_analyzer"
    cat > "$venv/bin/perf_analyzer" <<'WRAPPER'
#!/bin/sh
own=$(dirname "$(realpath "$0")")/../lib/perf_analyzer
LD_LIBRARY_PATH=$own${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$own/perf_analyzer" "$@"
WRAPPER
    chmod +x "$venv/bin/perf_analyzer"
fi
"$venv/bin/python" -c 'from dspark_client.triton import find_triton; find_triton()'
echo "$wanted" > "$stamp.new"
mv "$stamp.new" "$stamp"
rm -f "$unfinished"
