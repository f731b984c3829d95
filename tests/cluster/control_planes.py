"""The control planes of a test cluster: their processes, and what the kernel and they themselves count."""
import glob, json, os, re, subprocess, urllib.request

TICK = os.sysconf("SC_CLK_TCK")


def kubectl(*arguments, stdin=None):
    return subprocess.run(["kubectl", *arguments], check=True, capture_output=True, text=True, input=stdin).stdout


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
    """Seconds of a core since the process began."""
    words = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / TICK


def memory(pid):
    """PSS and private dirty memory, in MiB."""
    rollup = dict(line.split(":", 1) for line in open(f"/proc/{pid}/smaps_rollup").read().splitlines()[1:])
    return [int(rollup[key].split()[0]) / 1024 for key in ("Pss", "Private_Dirty")]


def metrics(address):
    """What one counts: each series, by its name with its labels."""
    text = urllib.request.urlopen(f"http://{address}:15020/metrics", timeout=5).read().decode()
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.MULTILINE)}
