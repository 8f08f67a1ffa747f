#!/usr/bin/env bash
# The GPU tests of one job, under a lease: health first, then pytest, on the same GPUs.
#
#   STAGE SHARD GPUS TESTS     as in gpu_stages.toml; SHARD is I/N
#   SELECT                     pytest's -m; empty takes all
#   MINUTES                    for the tests; LEASE_SECONDS for waiting until GPUs are free
#   REPORTS                    folder for account.json, junit.xml, report.html and artifacts/; must not be there yet
#   GOLDEN                     check, new or update; default: check
#   FORCE                      with new and update: the goldens to write, as --specalign-golden-force takes them
#
# Ends with the exit code of pytest, 124 after MINUTES, or 2 for bad arguments and for no lease. After MINUTES pytest is interrupted, so
# that it still writes its reports, and killed two minutes later. `exec` lets it get the signals of a cancelled job.
set -euo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

refuse() {
    echo "::error::gpu_test: $*"
    exit 2
}

[[ $STAGE =~ ^[a-z0-9][a-z0-9-]*$ ]] || refuse "STAGE is '$STAGE'"
[[ $SHARD =~ ^([1-9][0-9]{0,3})/([1-9][0-9]{0,3})$ ]] && ((BASH_REMATCH[1] <= BASH_REMATCH[2])) || refuse "SHARD is '$SHARD': write I/N"
for name in GPUS MINUTES LEASE_SECONDS; do
    [[ ${!name} =~ ^[1-9][0-9]{0,5}$ ]] || refuse "$name is '${!name}': give a whole number of at least 1"
done
[[ ${GOLDEN:=check} =~ ^(check|new|update)$ ]] || refuse "GOLDEN is '$GOLDEN'"
golden=(--specalign-golden="$GOLDEN")
if [[ $GOLDEN != check ]]; then
    [[ -n ${FORCE:-} ]] || refuse "GOLDEN is '$GOLDEN' and FORCE is empty: in CI a golden is written only if it is named"
    golden+=(--specalign-golden-force="$FORCE")
fi
[[ ! -e $REPORTS ]] || refuse "$REPORTS is there already: reports of another run would be taken for this one's"
read -r -a tests <<<"$TESTS"
((${#tests[@]})) || refuse "TESTS is empty"
for path in "${tests[@]}"; do
    [[ $path != -* ]] || refuse "TESTS has an option in it: '$path'"
done
select=()
if [[ -n ${SELECT:-} ]]; then select=(-m "$SELECT"); fi

mkdir -p "$REPORTS/artifacts"
export PYTHONPATH="$scripts${PYTHONPATH:+:$PYTHONPATH}"
exec specalign lease --count "$GPUS" --timeout "$LEASE_SECONDS" -- \
    python "$scripts/gpu_health.py" --gpus "$GPUS" -- \
    timeout --signal=INT --kill-after=120s "${MINUTES}m" \
    python -m pytest -p specalign -p ci_shard -p no:cacheprovider \
    --ci-stage="$STAGE" --ci-shard="$SHARD" --ci-account="$REPORTS/account.json" \
    --specalign-gpu-policy=require --specalign-waivers=.github/gpu_waivers.toml "${golden[@]}" \
    --specalign-artifacts="$REPORTS/artifacts" --specalign-report="$REPORTS/report.html" --junit-xml="$REPORTS/junit.xml" \
    "${select[@]}" -- "${tests[@]}"
