#!/usr/bin/env bash
# Prints the traces of a cluster on this machine, one per line: processes, mounts, network namespaces, links, routes,
# nftables, cgroups, files. `traces.sh gone` reads the output of an earlier call from standard input, waits until no other
# trace is left, and prints the remaining ones.
# Only names of the cluster count, because other programs run on the same machine.
set -euo pipefail
. "$(dirname "$0")/env.sh"
processes() {
  local p command
  for p in /proc/[0-9]*; do
    # Processes of the cluster have its files in their command line, or are in one of its cgroups.
    command=$(tr '\0' ' ' < "$p/cmdline") || continue
    [ -n "$command" ] || continue   # an ended process, or a kernel thread
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
  # The tables of kube-proxy and Leno belong into the network namespaces of nodes and pods.
  nft list tables 2> /dev/null | awk '$3 ~ /^(kube-proxy|leno)/ {print}' || true
  find /sys/fs/cgroup -maxdepth 2 -type d -name "$KC_NAME" -printf 'cgroup %p\n'
  [ ! -e "$KC_STATE" ] || echo "file $KC_STATE"
}
if [ "${1:-}" = gone ]; then
  before=$(sort -u)
  # Killed processes remain for a moment.
  for _ in $(seq 300); do
    left=$(comm -13 <(echo "$before") <(traces | sort -u))
    [ -n "$left" ] || exit 0
    sleep 0.1
  done
  echo "$left"
else
  traces | sort -u
fi
