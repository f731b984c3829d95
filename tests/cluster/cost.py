#!/usr/bin/env python3
"""What the control planes of a test cluster cost.

cost.py WHEN PODS     CPU since their start, memory, and what they know; waits until that many
                      workloads of the namespace `scale` have a sidecar and are known
cost.py injector      CPU for each pod that gets a sidecar, of one replica, asked without a pause
"""
import copy, http.client, json, ssl, sys, threading, time

from control_planes import control_planes, cpu, kubectl, memory, metrics

DEADLINE = 120
# What the scale work promises: docs/scale.md.
PRIVATE_MIB_MAX = 96
PODS_PER_SECOND_MIN = 50


def tell(when, pods):
    end = time.monotonic() + DEADLINE
    while True:
        known = [metrics(address)["leno_control_workloads"] for _, address in control_planes()]
        if all(number >= pods for number in known):
            break
        if time.monotonic() > end:
            sys.exit(f"the control planes know {known} workloads, not {pods}")
        time.sleep(0.1)
    if pods:
        names = "jsonpath={range .items[*]}{.spec.initContainers[*].name}{'\\n'}{end}"
        lines = kubectl("-n", "scale", "get", "pods", "-o", names).splitlines()
        with_sidecar = sum("leno-proxy" in line for line in lines)
        if with_sidecar != pods:
            sys.exit(f"{with_sidecar} of {len(lines)} pods have a sidecar, not {pods}")
    for (pid, _), number in zip(control_planes(), known):
        pss, dirty = memory(pid)
        print(f"{when}: control plane {pid}: {number:.0f} workloads, CPU {cpu(pid):.2f} s since its start, "
              f"PSS {pss:.1f} MiB, private dirty {dirty:.1f} MiB")
        if dirty > PRIVATE_MIB_MAX:
            sys.exit(f"a control plane holds {dirty:.1f} MiB; {PRIVATE_MIB_MAX} are promised")


def injector(reviews=4000, clients=8):
    config = json.loads(kubectl("get", "mutatingwebhookconfiguration", "sidecar-injector.leno.dev", "-o", "json"))
    path = config["webhooks"][0]["clientConfig"]["service"]["path"]
    pid, address = control_planes()[0]
    pod = {
        "metadata": {"name": "a", "namespace": "default", "labels": {"leno.dev/injection": "enabled", "app": "a"}},
        "spec": {"serviceAccountName": "default", "containers": [
            {"name": "web", "image": "example.com/web:1", "ports": [{"name": "http", "containerPort": 8080}],
             "env": [{"name": f"SETTING_{i}", "value": "x" * 40} for i in range(20)],
             "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}},
             "livenessProbe": {"tcpSocket": {"port": "http"}},
             "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}}]},
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "a", "namespace": "default", "operation": "CREATE", "userInfo": {}, "object": pod}}
    body = json.dumps(copy.deepcopy(review))
    patched = []
    # Only what it costs is asked here: who it is the API server finds out.
    trust = ssl._create_unverified_context()

    def ask(number):
        connection = http.client.HTTPSConnection(address, 15017, context=trust, timeout=30)
        for _ in range(number):
            connection.request("POST", path, body, {"content-type": "application/json"})
            answer = json.loads(connection.getresponse().read())["response"]
            patched.append(bool(answer["allowed"] and answer.get("patch")))

    before, began = cpu(pid), time.monotonic()
    threads = [threading.Thread(target=ask, args=(reviews // clients,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used, took = cpu(pid) - before, time.monotonic() - began
    if len(patched) != reviews or not all(patched):
        sys.exit(f"{sum(patched)} of {reviews} pods got a sidecar")
    print(f"injector: {reviews} pods, {used / reviews * 1e6:.0f} us of CPU each: {reviews / used:.0f} a second on one "
          f"core; {reviews / took:.0f} a second here, with a client in Python beside it")
    if reviews / used < PODS_PER_SECOND_MIN:
        sys.exit(f"{PODS_PER_SECOND_MIN} pods a second are promised on one core")


if __name__ == "__main__":
    if sys.argv[1:] == ["injector"]:
        injector()
    elif len(sys.argv) == 3:
        tell(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(__doc__)
