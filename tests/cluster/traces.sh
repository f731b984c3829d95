#!/usr/bin/env bash
# What of a cluster is on this machine, a line for each thing: processes, mounts, network namespaces, links, routes,
# nftables, cgroups, files. `traces.sh gone` waits until nothing is there that an earlier call did not print, which it is
# given on its standard input, and prints what is left then.
# Only what has the cluster's names counts: others work on the same machine.
set -euo pipefail
. "$(dirname "$0")/env.sh"
processes() {
  local p command
  for p in /proc/[0-9]*; do
    # What runs in it is named by its files, or is in a cgroup of it.
    command=$(tr '\0' ' ' < "$p/cmdline") || continue
    [ -n "$command" ] || continue   # has ended, or is the kernel's
    if [[ $command == *"$KC_STATE"* ]] || grep -qs ":/$KC_NAME\(/\|$\)" "$p/cgroup"; then
      echo "process ${command:0:100}"
    fi
  done 2> /dev/null
}
traces() {
  processes
  awk -v state="$KC_STATE/" -v netns="/run/netns/$KC_NAME-" \
    'index($5, state) == 1 || index($5, netns) == 1 {print "mount " $5}' /proc/self/mountinfo
  ip netns list | awk -v name="$KC_NAME-" 'index($1, name) == 1 {print "namespace " $1}'
  ip -o link show | awk -F'[ :@]+' -v name="$KC_NAME" '$2 == name || index($2, name "-") == 1 {print "link " $2}'
  { ip route show table all; ip -6 route show table all; } |
    awk -v bridge="$KC_NAME" '{for (i = 1; i < NF; i++) if ($i == "dev" && $(i + 1) == bridge) print "route " $0}'
  # Those of kube-proxy and of Leno belong into the namespaces of nodes and pods.
  nft list tables 2> /dev/null | awk '$3 ~ /^(kube-proxy|leno)/ {print}' || true
  find /sys/fs/cgroup -maxdepth 2 -type d -name "$KC_NAME" -printf 'cgroup %p\n'
  [ ! -e "$KC_STATE" ] || echo "file $KC_STATE"
}
if [ "${1:-}" = gone ]; then
  before=$(sort -u)
  # What was killed lingers for a moment.
  for _ in $(seq 300); do
    left=$(comm -13 <(echo "$before") <(traces | sort -u))
    [ -n "$left" ] || exit 0
    sleep 0.1
  done
  echo "$left"
else
  traces | sort -u
fi
