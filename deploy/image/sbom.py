#!/usr/bin/env python3
"""Print what the program is made of, for one target, as SPDX 2.3 in JSON: sbom.py TARGET"""
import json
import subprocess
import sys

tree = subprocess.run(
    ["cargo", "tree", "--locked", "-p", "leno-cli", "-e", "normal", "--prefix", "none", "--target", sys.argv[1],
     "--format", "{p}\t{l}"], check=True, capture_output=True, text=True).stdout
packages = {}
for line in tree.splitlines():
    what, licence = line.split("\t")
    name, version = what.split(" ")[:2]
    # A crate that was listed before ends in (*).
    packages[name, version.lstrip("v")] = licence.removesuffix(" (*)") or "NOASSERTION"


def described(name, version, licence):
    ours = name.startswith("leno-")
    return {
        "SPDXID": f"SPDXRef-{name}-{version}".replace("_", "-").replace("+", "-"),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseDeclared": licence.replace("/", " OR "),
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        **({} if ours else {"externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
            "referenceLocator": f"pkg:cargo/{name}@{version}"}]}),
    }


listed = [described(*key, licence) for key, licence in sorted(packages.items())]
json.dump({
    "spdxVersion": "SPDX-2.3",
    "dataLicense": "CC0-1.0",
    "SPDXID": "SPDXRef-DOCUMENT",
    "name": f"leno-{sys.argv[1]}",
    "documentNamespace": f"https://leno.dev/sbom/{sys.argv[1]}",
    "creationInfo": {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: sbom.py"]},
    "packages": listed,
    "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES",
                       "relatedSpdxElement": next(p["SPDXID"] for p in listed if p["name"] == "leno-cli")}],
}, sys.stdout, indent=1)
