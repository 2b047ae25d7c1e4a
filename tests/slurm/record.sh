#!/usr/bin/env bash
# Record what the commands of the Slurm here print, as test data:
#     bash tests/slurm_versions/root.sh sid bash tests/slurm/record.sh
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
into="$here/recorded/$(slurmctld -V | cut -d ' ' -f 2)"
state="$(mktemp -d /tmp/hc-XXXX)"
trap 'hpctrain cluster down --state "$state" >/dev/null' EXIT
hpctrain cluster up --state "$state" --nodes 3 --gpus 2
export SLURM_CONF="$state/etc/slurm.conf"
mkdir -p "$into" "/tmp/two words"
cd "/tmp/two words"

record() {
    local name=$1
    shift
    "$@" >"$into/$name.out" 2>&1 || printf 'exit status %d\n' $? >>"$into/$name.out"
}
submit() { sbatch --parsable --output=/dev/null "$@" --wrap='sleep 120'; }

tricky=(--job-name='JobState=FAILED two words' --comment='NodeList=node9 JobState=FAILED Restarts=7')
running="$(submit --nodes=2 --ntasks=3 --time=5 "${tricky[@]}")"
submit --hold "${tricky[@]}" >/dev/null
submit --array=1-3%1 --partition=down >/dev/null
submit --nodes=1 : --nodes=1 >/dev/null
for _ in $(seq 100); do
    [ "$(squeue --noheader --jobs="$running" --format=%T)" != RUNNING ] || break
    sleep 0.1
done

record show-running scontrol --oneliner show job "$running"
record show-jobs scontrol --oneliner show job
record show-unknown scontrol --oneliner show job 4711
record show-json scontrol --json show job "$running"
record show-node scontrol --oneliner show node
record show-hostnames scontrol show hostnames 'node[1-2],node3'
record ping scontrol ping
record sinfo sinfo --noheader --all --exact '--format=%P|%a|%l|%D|%c|%G|%m'
record squeue squeue --noheader '--format=%i|%T|%r|%j'
record sacct sacct
record mpi-list srun --mpi=list
record refused-partition sbatch --partition=none --wrap=true
record refused-nodes sbatch --nodes=9 --immediate --wrap=true
record refused-feature sbatch --constraint=milan --wrap=true
scancel --user=root
printf 'Recorded in %s\n' "$into"
