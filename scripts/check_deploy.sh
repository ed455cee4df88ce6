#!/bin/sh
# usage: scripts/check_deploy.sh BIN
# Reads deploy/ as systemd and Kubernetes do, as far as this machine has their tools. BIN is where
# those of a Python environment are. Starts nothing.
set -eu
bin=$1
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

cp -r deploy/kubernetes "$made/kubernetes"
head -c 32 /dev/zero | tr '\0' k >"$made/kubernetes/control-key"
if command -v kubectl >/dev/null; then
    kubectl kustomize "$made/kubernetes" >"$made/all.yaml"
else
    echo "kubectl is missing: kustomization.yaml is not read" >&2
    cat deploy/kubernetes/gateway.yaml deploy/kubernetes/prefill.yaml deploy/kubernetes/decode.yaml >"$made/all.yaml"
fi
"$bin/kubernetes-validate" --strict --quiet "$made/all.yaml"

if command -v systemd-analyze >/dev/null; then
    for unit in deploy/systemd/*.service; do # the program need not be installed here
        sed "s#^ExecStart=[^ ]*#ExecStart=/bin/true#" "$unit" >"$made/${unit##*/}"
    done
    systemd-analyze verify "$made"/*.service
else
    echo "systemd-analyze is missing: units are not read" >&2
fi
