#!/usr/bin/env bash
# Everything that has to hold before a change is merged.
#     bash tests/run.sh                 linters, types, docs, then all tests
#     bash tests/run.sh -k checkpoint   pytest alone, with these arguments
#
# The virtual environment is that of examples/venv.sh (HPCTRAIN_VENV, PYTHON).
# HPCTRAIN_APT=0  do not install Slurm, Open MPI and Chromium with apt-get; what needs them is skipped
# CI=true         a missing component is a failure, not a skipped test
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../examples/venv.sh"
cd "$checkout"

if [ "${CI:-}" = true ]; then
    export HPCTRAIN_REQUIRE_ALL=1
fi

apt_packages=(slurmd slurmctld slurm-client munge libpmix-dev iproute2 util-linux
    slurmdbd slurm-wlm-mysql-plugin mariadb-server openmpi-bin openssh-server g++ make bubblewrap
    squashfs-tools squashfuse fuse3)
# Ubuntu has Chromium as a snap only, which needs its daemon.
! grep -qs '^ID=debian' /etc/os-release || apt_packages+=(chromium)

packages_are_installed() {
    local plan
    plan="$(apt-get -s install --no-install-recommends --no-upgrade "${apt_packages[@]}" 2>/dev/null)" &&
        ! grep -q '^Inst ' <<<"$plan"
}

# A subshell: its trap takes the policy away again, whatever happens to apt-get.
install_packages() (
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d
    # Exit code 101 of this file is Debian's way to say: start no daemon.
    if (set -o noclobber && printf '#!/bin/sh\nexit 101\n' >"$policy") 2>/dev/null; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        chmod 755 "$policy"
    fi
    step 300 "Refreshing the package lists" "see whether the network is there" \
        apt-get -q -o DPkg::Lock::Timeout=120 update || return 1
    step 1200 "Installing Slurm for the virtual cluster, without starting it, Open MPI and Chromium" \
        "apt-get install ${apt_packages[*]}" \
        apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends --no-upgrade \
        "${apt_packages[@]}"
)

provide_packages() {
    local reason
    if [ "${HPCTRAIN_APT:-1}" = 0 ]; then
        reason="HPCTRAIN_APT=0"
    elif [ "$(id -u)" -ne 0 ]; then
        reason="this user is not root"
    elif ! command -v apt-get >/dev/null; then
        reason="this machine has no apt-get"
    elif packages_are_installed || install_packages; then
        return
    elif [ -n "${HPCTRAIN_REQUIRE_ALL:-}" ]; then
        die "CI needs the virtual Slurm cluster, Open MPI and Chromium, and their packages could not be installed."
    else
        reason="apt-get failed"
    fi
    say "Slurm, Open MPI and Chromium are used as far as they are already here: $reason."
}

# Nobody offers Horovod ready-made. A machine that has built it before takes it from its cache.
provide_horovod() {
    step 1800 "Installing Horovod, which is built the first time (4 to 10 minutes)" \
        "hpctrain install horovod" hpctrain install horovod && return
    [ -z "${HPCTRAIN_REQUIRE_ALL:-}" ] || die "CI needs Horovod, and it could not be installed."
    say "The tests of Horovod are skipped."
}

use_venv dev
# Horovod is built with it; Debian has it apart from its python3.
[ -f "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] ||
    apt_packages+=(python3-dev)
provide_packages
[ $# -gt 0 ] || provide_horovod

# Tests start thousands of processes that import hpctrain. Where PYTHONDONTWRITEBYTECODE is set, as in
# images of containers, each would compile it anew, which takes as long as all else of a short command.
python -m compileall -q hpctrain slurm_templates || true

if [ $# -gt 0 ]; then
    exec pytest "$@"
fi

# Two thirds of their time the tests wait: for Slurm, for ranks that start, for the end of a time limit. More
# files than that at once would hold up each other's ranks where the machine does other work as well.
count_processes() {
    local cores
    cores="$(nproc)"
    echo $((cores < 4 ? cores + 1 : 4))
}

# Tests kill processes, nodes and clusters on a machine that may do other work as well. In CI alone, up to
# five that fail are run once more, by themselves; that they failed at first stays in the log.
run_tests() {
    local first_time=.pytest_cache/v/cache/lastfailed
    # Those have run in an environment of their own.
    local -a tests=(pytest --ignore=tests/tensorflow_trainer --ignore=tests/slurm_versions)
    # A file is in one process, with all that its fixtures make. Each process has a cluster of its own.
    # In their order: those of JAX are the last, see tests/conftest.py.
    local -a at_once=(--numprocesses="$(count_processes)" --dist=loadfile --no-loadscope-reorder)
    # To collect all files for those few tests takes longer than they do.
    local -a alone
    mapfile -t alone < <(grep -rl --include='test_*.py' 'mark\.alone' tests)
    local failed=
    "${tests[@]}" -m alone "${alone[@]}" || failed=yes
    "${tests[@]}" "${at_once[@]}" -m "not alone" || failed=yes
    [ -n "$failed" ] || return 0
    [ "${CI:-}" = true ] && [ "$(grep -c '": true' "$first_time")" -le 5 ] || return 1
    say "FAILED THE FIRST TIME, a bug to look into: $(grep '": true' "$first_time")"
    "${tests[@]}" --last-failed --last-failed-no-failures=none
}

can_make_a_root() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null && [ "${HPCTRAIN_APT:-1}" != 0 ]
}

# Debian 13's Slurm, Open MPI and Python: the cheapest that is newer, and it stays as it is.
test_newer_slurm() {
    if ! can_make_a_root; then
        [ -z "${HPCTRAIN_REQUIRE_ALL:-}" ] || die "CI needs a root of another Debian: apt-get and root."
        say "The tests with a newer Slurm are skipped: they need root, and apt-get on a Debian."
        return
    fi
    # pytest ends itself before that, with its clusters.
    timeout --kill-after=10 480 nox --no-venv --session slurm_versions -- trixie
}

# What TensorFlow and the newer Slurm need, beside the linters. Where it fails, their turn says why.
prepare() {
    nox --session tensorflow --install-only || true
    ! can_make_a_root || timeout --kill-after=10 480 bash tests/slurm_versions/root.sh trixie true || true
}

failed=
# bash lets what it starts in the background ignore Ctrl-C.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
prepare &>>"$install_log" &
prepared=$!
docs_log="$(mktemp)"
nox --no-venv --session docs &>"$docs_log" &
docs=$!
nox --no-venv --session format lint types imports docstrings || failed=yes
wait "$prepared" || true
say "Set-up and linters took $SECONDS s. Now the tests, with TensorFlow and with a newer Slurm first."
began=$SECONDS
tensorflow_log="$(mktemp)"
nox --session tensorflow &>"$tensorflow_log" &
tensorflow=$!
# Each process that runs the others then finds the bytecode of all files of tests.
pytest --collect-only -qq -p no:cacheprovider &>/dev/null &
collected=$!
test_newer_slurm || failed=yes
# They take longer than the linters, and these tests wait for half of their time.
wait "$docs" || failed=yes
cat "$docs_log"
rm -f "$docs_log"
wait "$collected" || true
wait "$tensorflow" || failed=yes
cat "$tensorflow_log"
rm -f "$tensorflow_log"
say "TensorFlow and the newer Slurm took $((SECONDS - began)) s. Now all others."
run_tests || failed=yes
# Nothing is printed after pytest's closing line unless there is something to say.
if [ -n "$failed" ]; then
    die "Failed. Checks before the tests: see the tables of nox above; one of them alone: nox -s NAME"
fi
