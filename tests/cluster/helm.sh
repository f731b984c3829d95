#!/usr/bin/env bash
# Runs Helm, at the version of tools/helm: helm.sh install leno deploy/helm/leno …
set -euo pipefail
. "$(dirname "$0")/env.sh"
helm=$KC_CACHE/helm-$(cat "$KC_HERE"/tools/helm/go.* | sha256sum | cut -c1-12)
if [ ! -x "$helm" ]; then
  (cd "$KC_HERE/tools/helm" && CGO_ENABLED=0 nice -n "${KC_NICE:-0}" go build -p "${KC_JOBS:-$(nproc)}" -trimpath -ldflags '-s -w' -o "$helm" helm.sh/helm/v3/cmd/helm) >&2
fi
exec "$helm" "$@"
