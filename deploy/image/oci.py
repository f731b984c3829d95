#!/usr/bin/env python3
"""Write an image as an OCI archive, without docker, buildah or a registry.

  oci.py -t NAME:TAG -o OUT.tar [--arch amd64] [-e ENTRYPOINT]... [-E K=V]... [-u UID[:GID]] [-l K=V]...
         [--with-libs] [--dir PATH]... SRC:DST[:MODE]...
  oci.py -t NAME:TAG -o OUT.tar --join ONE.tar OTHER.tar...

SRC:DST copies a file (or a whole directory) to DST in the image's one layer. --with-libs also adds the
shared objects that ldd(1) lists for each ELF file. --join makes one image for several architectures of
one archive for each. The output is reproducible. `ctr -n k8s.io images import OUT.tar` loads it, and
`skopeo copy oci-archive:OUT.tar docker://…` pushes it.
"""
import argparse, gzip, hashlib, io, json, os, re, subprocess, tarfile

ap = argparse.ArgumentParser()
ap.add_argument("-t", "--tag", action="append", required=True)
ap.add_argument("-o", "--out", required=True)
ap.add_argument("-e", "--entrypoint", action="append", default=[])
ap.add_argument("-E", "--env", action="append", default=[])
ap.add_argument("-u", "--user", default="")
ap.add_argument("-l", "--label", action="append", default=[])
ap.add_argument("--arch", default="amd64")
ap.add_argument("--join", action="store_true")
ap.add_argument("--level", type=int, default=1, help="how hard the layer is compressed, 1 to 9")
ap.add_argument("--with-libs", action="store_true")
ap.add_argument("--dir", action="append", default=[], help="empty dir, mode 1777")
ap.add_argument("--link", action="append", default=[], help="LINK=TARGET symlink")
ap.add_argument("files", nargs="*")
a = ap.parse_args()

blobs = {}


def blob(content, kind):
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"digest": "sha256:" + digest, "size": len(content), "mediaType": f"application/vnd.oci.image.{kind}"}


def canonical(value):
    return json.dumps(value, sort_keys=True).encode()


def mkdirs(entries, path):
    parts = path.strip("/").split("/")[:-1]
    for i in range(len(parts)):
        entries.setdefault("/".join(parts[: i + 1]), ("dir", None, 0o755))


def add(entries, src, dst, mode=None):
    dst = dst.strip("/")
    if os.path.isdir(src):
        for root, _, names in os.walk(src):
            for name in sorted(names):
                path = os.path.join(root, name)
                add(entries, path, os.path.join(dst, os.path.relpath(path, src)))
        return
    mkdirs(entries, dst)
    with open(src, "rb") as f:
        content = f.read()
    entries[dst] = ("file", content, mode or (0o755 if os.access(src, os.X_OK) else 0o644))


def libs(entries, src):
    out = subprocess.run(["ldd", src], capture_output=True, text=True)
    if out.returncode:
        return
    for line in out.stdout.splitlines():
        found = re.search(r"(?:=> )?(/\S+) \(0x", line)
        if found:
            add(entries, os.path.realpath(found[1]), found[1], 0o755)


def collect():
    """What is in the layer: path to kind, content, mode."""
    entries = {}
    for spec in a.files:
        src, dst, *mode = spec.split(":")
        add(entries, src, dst, int(mode[0], 8) if mode else None)
        if a.with_libs and os.path.isfile(src):
            libs(entries, src)
    for path in a.dir:
        mkdirs(entries, path.strip("/") + "/x")
        entries[path.strip("/")] = ("dir", None, 0o1777)
    for link in a.link:
        name, target = link.split("=", 1)
        mkdirs(entries, name)
        entries[name.strip("/")] = ("link", target, 0o777)
    return entries


def layer(entries):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as t:
        for path in sorted(entries):
            kind, content, mode = entries[path]
            item = tarfile.TarInfo(path)
            item.mode = mode
            if kind == "dir":
                item.type = tarfile.DIRTYPE
                t.addfile(item)
            elif kind == "link":
                item.type, item.linkname = tarfile.SYMTYPE, content
                t.addfile(item)
            else:
                item.size = len(content)
                t.addfile(item, io.BytesIO(content))
    return raw.getvalue()


def image():
    """The manifest of an image of one architecture."""
    raw = layer(collect())
    packed = blob(gzip.compress(raw, compresslevel=a.level, mtime=0), "layer.v1.tar+gzip")
    config = {"architecture": a.arch, "os": "linux", "created": "1970-01-01T00:00:00Z",
              "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"] + a.env,
                         "WorkingDir": "/", "Labels": dict(l.split("=", 1) for l in a.label)},
              "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(raw).hexdigest()]}}
    if a.entrypoint:
        config["config"]["Entrypoint"] = a.entrypoint
    if a.user:
        config["config"]["User"] = a.user
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": blob(canonical(config), "config.v1+json"), "layers": [packed]}
    described = blob(canonical(manifest), "manifest.v1+json")
    return described | {"platform": {"architecture": a.arch, "os": "linux"}}


def joined():
    """The index over the images of several archives."""
    manifests = {}
    for path in a.files:
        with tarfile.open(path) as t:
            for name in t.getnames():
                if name.startswith("blobs/sha256/"):
                    blobs[name.rsplit("/", 1)[-1]] = t.extractfile(name).read()
            for manifest in json.load(t.extractfile("index.json"))["manifests"]:
                manifests[manifest["digest"]] = {k: v for k, v in manifest.items() if k != "annotations"}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
             "manifests": list(manifests.values())}
    return blob(canonical(index), "index.v1+json")


top = joined() if a.join else image()
index = {"schemaVersion": 2, "manifests": [
    top | {"annotations": {"io.containerd.image.name": name,
                           "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1]}} for name in a.tag]}
with tarfile.open(a.out + ".tmp", "w", format=tarfile.GNU_FORMAT) as t:
    def put(name, content):
        item = tarfile.TarInfo(name)
        item.size = len(content)
        item.mode = 0o644
        t.addfile(item, io.BytesIO(content))
    put("oci-layout", canonical({"imageLayoutVersion": "1.0.0"}))
    put("index.json", canonical(index))
    for digest, content in sorted(blobs.items()):
        put("blobs/sha256/" + digest, content)
os.replace(a.out + ".tmp", a.out)
print(a.out, top["digest"], sum(map(len, blobs.values())))
