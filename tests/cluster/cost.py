#!/usr/bin/env python3
"""What the control planes of a test cluster cost.

cost.py WHEN PODS     CPU since their start, memory, and what they know; waits until that many
                      workloads of the namespace `scale` have a sidecar and are known
cost.py injector      CPU for each pod that gets a sidecar, of one replica, asked without a pause
"""
import copy, glob, http.client, json, os, ssl, subprocess, sys, threading, time, urllib.request

TICK = os.sysconf("SC_CLK_TCK")
DEADLINE = 120


def kubectl(*arguments):
    return subprocess.run(["kubectl", *arguments], check=True, capture_output=True, text=True).stdout


def control_planes():
    """Process and address of each."""
    found = {}
    pods = json.loads(kubectl("-n", "leno-system", "get", "pods", "-o", "json"))["items"]
    pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods}
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            environ = dict(word.split("=", 1) for word in open(path).read().split("\0") if "=" in word)
            command = open(path.replace("environ", "cmdline")).read().split("\0")
        except OSError:
            continue
        if command[1:3] == ["control", "--kubernetes"] and environ.get("POD_NAME") in addresses:
            found[environ["POD_NAME"]] = int(path.split("/")[2])
    return [(pid, addresses[name]) for name, pid in sorted(found.items())]


def cpu(pid):
    words = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / TICK


def memory(pid):
    rollup = dict(line.split(":", 1) for line in open(f"/proc/{pid}/smaps_rollup").read().splitlines()[1:])
    return [int(rollup[key].split()[0]) / 1024 for key in ("Pss", "Private_Dirty")]


def metric(address, name):
    text = urllib.request.urlopen(f"http://{address}:15020/metrics", timeout=5).read().decode()
    values = [float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " ")]
    return values[0]


def tell(when, pods):
    end = time.monotonic() + DEADLINE
    while True:
        known = [metric(address, "leno_control_workloads") for _, address in control_planes()]
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


if __name__ == "__main__":
    if sys.argv[1:] == ["injector"]:
        injector()
    elif len(sys.argv) == 3:
        tell(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(__doc__)
