#!/usr/bin/env bash
# Run a command in a Debian of another suite: with its Slurm, its Open MPI and its Python.
#     bash tests/slurm_versions/root.sh [--torch | --all] trixie pytest tests/homes
#
# The suite is unpacked into a directory below ~/.cache/hpctrain/slurm-roots (XDG_CACHE_HOME), from
# the mirror that this machine's own apt uses. The command sees the checkout as /checkout, this
# machine's /tmp, and the hpctrain of the checkout on PATH. It needs root.
#
# --torch  with torch and scikit-learn too, Debian's where they are new enough: 1 GB more
# --all    with all else that tests import too: 2 GB more, and some minutes
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../examples/venv.sh"

slurm_packages=(slurmctld slurmd slurm-client munge slurmdbd slurm-wlm-mysql-plugin mariadb-server
    openmpi-bin libpmix-dev iproute2 util-linux python3 python3-venv python3-numpy)
torch_packages=(python3-torch python3-sklearn)
# What the matrix needs from PyPI, beside hpctrain itself.
wheels=(pytest pytest-timeout)

roots="${XDG_CACHE_HOME:-$HOME/.cache}/hpctrain/slurm-roots"
environment=/opt/hpctrain
retry="see what it says above, then run the same again"

with_torch= with_all=
while case "${1:-}" in --torch) with_torch=yes ;; --all) with_torch=yes with_all=yes ;; *) false ;; esac do
    shift
done
suite="${1:-}"
[ -n "$suite" ] && [ $# -ge 2 ] || die "Usage: bash $0 [--torch | --all] SUITE COMMAND [ARGUMENT...]"
shift
root="$roots/$suite"
install_log="$root.log"

# ---- inside: in a mount namespace of its own, before and after the change of the root

show_in_root() {
    local place
    for place in "$@"; do
        if [ -d "$place" ]; then
            mkdir -p "$root$place"
        elif [ -e "$place" ]; then
            mkdir -p "$root$(dirname "$place")"
            [ -e "$root$place" ] || : >"$root$place"
        else
            continue
        fi
        mount --bind "$place" "$root$place"
    done
}

enter() {
    mount --make-rprivate /
    # pivot_root wants a mount, and a chroot could not make namespaces.
    mount --bind "$root" "$root"
    local place
    for place in /proc /sys /dev; do
        mount --rbind "$place" "$root$place"
    done
    mkdir -p "$root/checkout"
    mount --bind "$checkout" "$root/checkout"
    # So that names, apt and pip work as they do outside.
    show_in_root /tmp /etc/resolv.conf /etc/hosts $HPCTRAIN_PLACES_OF_PIP
    cd "$root"
    pivot_root . .
    umount --lazy .
    cd /checkout
    unset HPCTRAIN_PLACES_OF_PIP VIRTUAL_ENV PYTHONHOME PYTHONPATH
    export PATH="$environment/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    exec "$@"
}

if [ "${HPCTRAIN_ROOT_IS_PRIVATE:-}" = yes ]; then
    unset HPCTRAIN_ROOT_IS_PRIVATE
    enter "$@"
fi

# ---- outside

# What pip's settings name on this machine: certificates, its cache, directories with wheels (an index
# that is called simple may link to files beside it).
places_of_pip() {
    {
        printf '%s\n' /etc/pip.conf "$HOME/.config/pip/pip.conf"
        python3 -m pip cache dir
        python3 -m pip config list | grep -oE "(['= ]|file://)/[^' ]+" |
            sed -E "s,^(['= ]|file://),,; s,/simple/?$,,"
    } 2>/dev/null | sort -u | tr '\n' ' '
}

mirror_of_this_machine() {
    apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | sort -u | head -n 1
}

provide_mmdebstrap() {
    command -v mmdebstrap >/dev/null && return
    export DEBIAN_FRONTEND=noninteractive
    step 300 "Refreshing the package lists" "see whether the network is there" \
        apt-get -q -o DPkg::Lock::Timeout=120 update || exit 1
    step 300 "Installing mmdebstrap" "apt-get install mmdebstrap" apt-get -q -y \
        -o DPkg::Lock::Timeout=120 install --no-install-recommends mmdebstrap || exit 1
}

make_root() {
    local mirror
    [ ! -e "$root" ] || rm -rf --one-file-system "$root"
    provide_mmdebstrap
    mirror="$(mirror_of_this_machine)"
    [ -n "$mirror" ] || die "This machine's apt has no mirror of Debian ('apt-get indextargets' " \
        "names none), from which a root of $suite could be made. Next: run it on a Debian."
    rm -rf --one-file-system "$root.new"
    # The mirror may stand still, and sid says of itself how long it counts.
    step 600 "Unpacking Debian $suite with its Slurm (1 minute)" "$retry" mmdebstrap \
        --variant=minbase --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --aptopt='Acquire::Languages "none"' --aptopt='Acquire::Check-Valid-Until "false"' \
        --include="$(IFS=,; printf '%s' "${slurm_packages[*]}")" \
        "$suite" "$root.new" "$mirror" || exit 1
    # Debian's Open MPI 6 talks over the loopback only, unless its administrator says otherwise.
    sed -i 's/^btl_tcp_if_include/# &/' "$root.new/etc/openmpi/openmpi-mca-params.conf"
    mv "$root.new" "$root"
}

stamp_is() { [ "$(cat "$root/opt/$1.stamp" 2>/dev/null)" = "$2" ]; }

stamp() { printf '%s\n' "$2" >"$root/opt/$1.stamp"; }

key_of() { { printf '%s\n' "${slurm_packages[@]}" "${wheels[@]}"; cat "$@"; } | sha256sum | cut -d ' ' -f 1; }

provide_root() {
    local packages environment_key kept=
    local -a pip=(python -m pip install --quiet --no-input --disable-pip-version-check
        --constraint constraints.txt)
    packages="$(key_of /dev/null)"
    stamp_is packages "$packages" || {
        make_root
        stamp packages "$packages"
    }
    # Debian's torch of bookworm is 1.13.
    if [ -n "$with_torch" ] && [ "$suite" != bookworm ] && ! stamp_is torch "$packages"; then
        step 900 "Installing Debian's torch in it (1 minute)" "$retry" "${in_root[@]}" sh -c \
            "apt-get -q update && apt-get -q -y install --no-install-recommends ${torch_packages[*]} &&
             apt-get -q clean" || exit 1
        stamp torch "$packages"
    fi
    environment_key="$(key_of "$checkout"/{pyproject.toml,setup.cfg,constraints.txt})"
    stamp_is environment "$environment_key" || {
        # Debian's NumPy and torch: PyPI has torch for CPUs alone not for every Python.
        step 300 "Making its environment" "$retry" "${in_root[@]}" \
            python3 -m venv --clear --system-site-packages "$environment" || exit 1
        step 900 "Installing hpctrain into it" "$retry" "${in_root[@]}" \
            sh -c "${pip[*]} setuptools && ${pip[*]} --no-build-isolation --editable '.[local]' ${wheels[*]}" || exit 1
        stamp environment "$environment_key"
    }
    if [ -n "$with_torch" ] && [ "$suite" = bookworm ] && ! stamp_is wheels "$environment_key"; then
        step 900 "Installing PyPI's torch into it (1 minute)" "$retry" "${in_root[@]}" \
            "${pip[@]}" torch scikit-learn || exit 1
        stamp wheels "$environment_key"
    fi
    if [ -n "$with_all" ] && ! stamp_is tests "$environment_key"; then
        # What Debian has is of Debian's version.
        [ "$suite" = bookworm ] || kept='torch|numpy|scikit-learn|sympy'
        grep -vE "^(${kept:-none})=" "$checkout/constraints.txt" >"$root/opt/constraints.txt"
        step 1200 "Installing what tests import into it (3 minutes)" "$retry" "${in_root[@]}" \
            "${pip[@]/#constraints.txt//opt/constraints.txt}" --prefer-binary --no-build-isolation \
            --editable '.[test]' || exit 1
        stamp tests "$environment_key"
    fi
}

[ "$(id -u)" -eq 0 ] || die "Another Debian's root needs root: mounts and pivot_root."
mkdir -p "$roots"
in_root=(env HPCTRAIN_ROOT_IS_PRIVATE=yes "HPCTRAIN_PLACES_OF_PIP=$(places_of_pip)"
    unshare --mount bash "${BASH_SOURCE[0]}" "$suite")
exec 9>"$root.lock"
flock --wait 1800 9 || die "Another process has been making $root for half an hour. Next: end it."
provide_root
exec 9>&-
exec "${in_root[@]}" "$@"
