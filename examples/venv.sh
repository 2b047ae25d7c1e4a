# shellcheck shell=bash
# Sourced by examples/quickstart.sh and tests/run.sh, for Debian and Ubuntu:
#     source examples/venv.sh
#     use_venv local,torch,examples      makes the virtual environment, installs, puts it first on PATH
#
# HPCTRAIN_VENV  where the virtual environment is (default: .venv in the checkout)
# PYTHON         the interpreter to make it from (default: the first usable one, 3.10 or newer)
# pip reads its own settings, so PIP_INDEX_URL and pip.conf work as ever.

checkout="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${HPCTRAIN_VENV:-$checkout/.venv}"
case "$venv" in /*) ;; *) venv="$PWD/$venv" ;; esac
install_log="$venv.log"

say() { printf '[hpctrain] %s\n' "$*"; }

die() {
    printf '[hpctrain] %s\n' "$@" >&2
    exit 1
}

# step SECONDS WHAT NEXT COMMAND...: one line on the screen, all else in the log. Where COMMAND
# fails, the end of the log and the NEXT step are shown; the caller decides whether to go on.
step() {
    local limit_s=$1 what=$2 next=$3 began=$SECONDS from=1 status=0
    shift 3
    [ ! -f "$install_log" ] || from=$(($(wc -l <"$install_log") + 1))
    printf '[hpctrain] %s ... ' "$what"
    printf '+ %s\n' "$*" >>"$install_log"
    # --foreground: without it Ctrl-C would not reach the command.
    timeout --foreground --kill-after=10 "$limit_s" "$@" >>"$install_log" 2>&1 </dev/null || status=$?
    if [ "$status" -eq 0 ]; then
        printf '%d s\n' $((SECONDS - began))
        return 0
    fi
    printf 'failed after %d s\n' $((SECONDS - began))
    {
        tail -n "+$from" "$install_log" | tail -n 15 | sed 's/^/    /'
        [ "$status" -ne 124 ] || say "It was stopped at its limit of $limit_s s."
        say "Next: $next"
        say "Whole log: $install_log"
    } >&2
    return 1
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

can_make_venvs() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Sets `python`: one that can make a virtual environment before one that cannot.
find_python() {
    local candidate
    local -a candidates=(python3 python3.13 python3.12 python3.11 python3.10 python3.14)
    if [ -n "${PYTHON:-}" ]; then
        is_new_enough "$PYTHON" ||
            die "PYTHON=$PYTHON does not run, or is older than Python 3.10. Unset PYTHON, or name another."
        candidates=("$PYTHON")
    fi
    python=
    for candidate in "${candidates[@]}"; do
        is_new_enough "$candidate" || continue
        [ -n "$python" ] || python=$candidate
        if can_make_venvs "$candidate"; then
            python=$candidate
            return
        fi
    done
    [ -n "$python" ] || die \
        "No Python 3.10 or newer was found (tried: ${candidates[*]})." \
        "Next: install one, for example 'sudo apt-get install -y python3 python3-venv', or name one:" \
        "      PYTHON=/path/to/python3 bash $0"
}

# Debian and Ubuntu leave ensurepip out of python3; it is in a package named after the version.
install_venv_module() {
    local package
    package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        die "$python cannot make virtual environments: its ensurepip module is missing." \
            "Next: sudo apt-get update && sudo apt-get install -y $package" \
            "      and then again: bash $0"
    fi
    export DEBIAN_FRONTEND=noninteractive
    step 300 "Refreshing the package lists" "see whether the network is there, then again: bash $0" \
        apt-get -q -o DPkg::Lock::Timeout=120 update || exit 1
    step 600 "Installing $package" "apt-get install -y $package, then again: bash $0" \
        apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends "$package" || exit 1
    can_make_venvs "$python" ||
        die "$python still cannot make virtual environments. Name another one: PYTHON=/usr/bin/python3 bash $0"
}

make_venv() {
    if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        is_new_enough "$venv/bin/python" ||
            die "$venv holds a Python older than 3.10. Remove it, or set HPCTRAIN_VENV to another folder."
        return
    elif [ -d "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
        die "$venv is neither empty nor a virtual environment. Set HPCTRAIN_VENV to another folder."
    fi
    # A folder that is there but has no working pip is half made, or its interpreter has gone:
    # venv mends it, and without --clear removes nothing from it.
    local python
    find_python
    can_make_venvs "$python" || install_venv_module
    step 300 "Making $venv with $("$python" -V)" "remove $venv, then again: bash $0" \
        "$python" -m venv "$venv" || exit 1
}

use_venv() {
    local extras=$1 stamp="$venv/hpctrain.stamp" key torch
    torch="$(sed -n 's/^\(torch==[^ ;]*\).*/\1/p' "$checkout/constraints.txt")"
    mkdir -p "$(dirname "$venv")"
    : >"$install_log"
    make_venv

    # The stamp: what was installed from, then one line for each set of extras.
    key="$({
        printf '%s\n' "$checkout"
        "$venv/bin/python" -V
        cat "$checkout/pyproject.toml" "$checkout/setup.cfg" "$checkout/constraints.txt"
    } | sha256sum | cut -d ' ' -f 1)"
    [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$key" ] || rm -f "$stamp"

    if ! grep -qsxF "$extras" "$stamp"; then
        say "Installing into $venv; pip's output goes to $install_log"
        local -a install=("$venv/bin/python" -m pip install --quiet --no-input
            --disable-pip-version-check --constraint "$checkout/constraints.txt")
        local again="see what pip says, then again: bash $0"
        # torch by itself and first, so that nothing else can choose its version.
        step 3600 "Installing $torch (up to some GB; PIP_INDEX_URL may name a smaller CPU build)" \
            "$again" "${install[@]}" "$torch" || exit 1
        step 300 "Installing setuptools" "$again" "${install[@]}" setuptools || exit 1
        # Without build isolation, so that the constraints hold for setuptools too.
        step 1800 "Installing hpctrain[$extras]" "$again" \
            "${install[@]}" --no-build-isolation --editable "${checkout}[$extras]" || exit 1
        [ -f "$stamp" ] || printf '%s\n' "$key" >"$stamp"
        printf '%s\n' "$extras" >>"$stamp"
    fi
    export VIRTUAL_ENV="$venv" PATH="$venv/bin:$PATH"
    unset PYTHONHOME
}
