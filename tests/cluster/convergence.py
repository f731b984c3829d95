#!/usr/bin/env python3
"""How fast a change in the cluster reaches the sidecars that it concerns.

convergence.py FOLLOWERS CHANGES

So many real pods with sidecars use a service, beside whatever else is in the cluster. Another pod of the service comes
or goes, again and again, and a rule of it changes as often. What is measured is what control planes tell of
themselves: from seeing a change until the last proxy that it concerns has applied it. At the end: their CPU while
nothing changes.
"""
import sys, time

from control_planes import control_planes, cpu, kubectl, metrics

# What the scale work promises: docs/scale.md.
MOVE_SECONDS_MAX = 0.5
RULE_SECONDS_MAX = 1  # Two are promised; this is the histogram's last bound before.
IDLE_CORES_MAX = 0.01
DEADLINE = 120
IDLE_SECONDS = 10

PODS = """
apiVersion: v1
kind: Namespace
metadata: {name: moves, labels: {leno.dev/injection: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: moving, namespace: moves}
spec: {selector: {app: moving}, ports: [{port: 80, targetPort: 8080}]}
"""
DEPLOYMENT = """
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: moves}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: client
        image: kc.local/toolbox:1
        imagePullPolicy: Never
        command: [sh, -c, 'trap exit TERM; while :; do curl -s -m 1 -o /dev/null http://moving/; sleep 1 & wait $!; done']
"""
RULE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: numbered, namespace: moves}
spec:
  parentRefs: [{group: '', kind: Service, name: moving}]
  rules:
  - filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-number, value: 'NUMBER'}]}}]
    backendRefs: [{name: moving, port: 80}]
"""


def told():
    """What all control planes together have counted."""
    total = {}
    for _, address in control_planes():
        for name, value in metrics(address).items():
            total[name] = total.get(name, 0) + value
    return total


def until(what, look):
    end = time.monotonic() + DEADLINE
    while not look():
        if time.monotonic() > end:
            sys.exit(f"not within {DEADLINE} s: {what}")
        time.sleep(0.05)


def settled(recipients=0):
    """True if so many pushes had a recipient, and every proxy has applied all of them."""
    now = told()
    return (now["leno_control_push_recipients_total"] >= recipients and now["leno_control_proxies_out_of_sync"] == 0
            and now['leno_control_queue_depth{queue="pushes"}'] == 0)


def move(number):
    """Another pod comes, or it goes."""
    kubectl("-n", "moves", "scale", "deployment/moving", f"--replicas={2 - number % 2}")
    until("no pod is under way", quiet)


def quiet():
    """Whether all pods are there that should be, and no others, and their proxies have applied all that they were told."""
    kubectl("-n", "moves", "rollout", "status", "deployment/moving", f"--timeout={DEADLINE}s")
    pods = kubectl("-n", "moves", "get", "pods", "-l", "app=moving", "-o", "name").split()
    wanted = kubectl("-n", "moves", "get", "deployment/moving", "-o", "jsonpath={.spec.replicas}")
    return len(pods) == int(wanted) and settled()


def rule(number):
    kubectl("apply", "-f", "-", stdin=RULE.replace("NUMBER", str(number)))


def measure(what, followers, changes, change, seconds_max):
    """Makes changes, and fails when one in a hundred takes longer than it may."""
    before = told()
    for number in range(changes):
        already = told()["leno_control_push_recipients_total"]
        change(number)
        until(f"{what}, and all have applied it", lambda: settled(already + followers))
    after = told()
    name = "leno_control_convergence_seconds"
    grown = {key: after[key] - before.get(key, 0) for key in after}
    count = grown[f"{name}_count"]
    recipients = grown["leno_control_push_recipients_total"]
    bounds = sorted(float(key.split('"')[1]) for key in grown if key.startswith(f"{name}_bucket") and "Inf" not in key)
    within = {bound: grown[f'{name}_bucket{{le="{bound:g}"}}'] for bound in bounds}
    median, p99 = (next((bound for bound in bounds if within[bound] >= share * count), float("inf"))
                   for share in (0.5, 0.99))
    print(f"{what}, {changes} times with {followers} sidecars: {count:.0f} changes pushed to {recipients:.0f} proxies; mean "
          f"{1e3 * grown[f'{name}_sum'] / count:.1f} ms, half within {1e3 * median:g} ms, 99 % within {1e3 * p99:g} ms")
    if p99 > seconds_max:
        sys.exit(f"{1e3 * seconds_max:g} ms are promised")


def idle():
    planes = [pid for pid, _ in control_planes()]
    before = [cpu(pid) for pid in planes]
    time.sleep(IDLE_SECONDS)
    for pid, used in zip(planes, before):
        cores = (cpu(pid) - used) / IDLE_SECONDS
        print(f"idle: control plane {pid}: {cores:.4f} cores")
        if cores > IDLE_CORES_MAX:
            sys.exit(f"{IDLE_CORES_MAX} cores are promised")


def main(followers, changes):
    began = time.monotonic()
    deployments = [DEPLOYMENT.replace("NAME", name).replace("REPLICAS", str(replicas))
                   for name, replicas in (("moving", 1), ("follower", followers))]
    kubectl("apply", "-f", "-", stdin=PODS + "".join(deployments))
    kubectl("-n", "moves", "rollout", "status", "deployment/follower", f"--timeout={DEADLINE}s")
    until("all are connected", lambda: told()["leno_control_proxies"] > followers and settled())
    print(f"{followers} real pods with sidecars: {time.monotonic() - began:.1f} s")
    rule(-1)
    measure("an endpoint comes or goes", followers, changes, move, MOVE_SECONDS_MAX)
    measure("a rule that all obey changes", followers, changes, rule, RULE_SECONDS_MAX)
    kubectl("delete", "namespace", "moves")
    idle()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(int(sys.argv[1]), int(sys.argv[2]))
