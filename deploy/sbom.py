#!/usr/bin/python3
"""The bill of materials (SPDX 2.3, JSON) of a Debian package before it is packed: its files, and what each program and
library of it is linked of.

    sbom.py PACKAGE VERSION BUILD ROOT

ROOT has the package's files; the text goes to ROOT/usr/share/doc/PACKAGE/PACKAGE_ARCHITECTURE.spdx.json. BUILD is the
folder of ninja in which they were built. What is loaded is in the files (NEEDED); what was put into them is what ninja
gave the linker from outside of the build, or made sources of. Versions and licences are those of the Debian packages
that these files are of, on this machine. The same package gives the same bytes: SOURCE_DATE_EPOCH is the time.
"""
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ELF = b"\x7fELF"
# Short names of licences in Debian's copyright files that SPDX's list has under others.
LICENCES = {"expat": "MIT", "mit": "MIT", "apache-2.0": "Apache-2.0", "artistic": "Artistic-1.0-Perl",
            "bsd-2-clause": "BSD-2-Clause", "bsd-3-clause": "BSD-3-Clause", "bsd-4-clause": "BSD-4-Clause",
            "bsl-1.0": "BSL-1.0", "cc0-1.0": "CC0-1.0", "isc": "ISC", "zlib": "Zlib"}
GNU = re.compile(r"(A?L?GPL|GFDL)-(\d)(?:\.(\d))?(\+?)", re.IGNORECASE)
NO_ASSERTION = "NOASSERTION"


def said(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="utf-8").stdout


def identifier(*words):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-")


# ---- the Debian packages of this machine ----

def owner(path):
    """The package that a file of the system is of, by either name that /lib and /usr/lib have."""
    real = os.path.realpath(path)
    for name in (path, real, path.removeprefix("/usr"), real.removeprefix("/usr"), "/usr" + path):
        try:
            return said("dpkg-query", "-S", name).splitlines()[0].rpartition(": ")[0].split(",")[0]
        except subprocess.CalledProcessError:
            pass
    sys.exit(f"sbom.py: {path} is of no Debian package; install the library from one")


def libraries():
    """{name: path} of what the loader finds."""
    found = {}
    for line in said("/sbin/ldconfig", "-p").splitlines():
        match = re.match(r"\s+(\S+) \(.*\) => (\S+)$", line)
        if match:
            found.setdefault(*match.groups())
    return found


def paragraphs(text):
    """Those of a machine-readable copyright file, as {field: value}; none of another file."""
    found = []
    if not re.match(r"Format(-Specification)?:.*\b(copyright-format|DEP)", text, re.IGNORECASE):
        return found
    for block in re.split(r"\n[ \t]*\n", text):
        fields = re.findall(r"^(\S+):[ \t]*(.*(?:\n[ \t].*)*)", block, re.M)
        found.append({name.lower(): value.strip() for name, value in fields})
    return found


class Licences:
    """Licences of all packages of one document: those that SPDX does not list are quoted in it."""

    def __init__(self):
        self.quoted = {}

    def one(self, package, name, texts):
        gnu = GNU.fullmatch(name)
        if gnu:
            family, major, minor, later = gnu.groups()
            return f"{family.upper()}-{major}.{minor or 0}-{'or-later' if later else 'only'}"
        if name.lower() in LICENCES:
            return LICENCES[name.lower()]
        reference = "LicenseRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", f"{package.split(':')[0]}-{name}").strip("-")
        self.quoted[reference] = {"licenseId": reference, "name": name, "extractedText": texts.get(name) or name}
        return reference

    def expression(self, package, text, texts):
        """SPDX's for Debian's "A or B, and C": a comma binds less than "or", which binds less than "and"."""
        for mark, word in ((r",\s+(?:and)\s+", " AND "), (r",?\s+or\s+", " OR "), (r"\s+and\s+", " AND ")):
            parts = re.split(mark, text)
            if len(parts) > 1:
                return "(" + word.join(self.expression(package, part, texts) for part in parts) + ")"
        return self.one(package, text, texts)

    def declared(self, package, copyright_file):
        """Of all of a package but what Debian has added; nothing is asserted where no machine can read it."""
        try:
            blocks = paragraphs(pathlib.Path(copyright_file).read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            blocks = []
        texts = {}
        for block in blocks:
            name, _, text = block.get("license", "").partition("\n")
            if text:
                texts.setdefault(name.strip(), re.sub(r"^[ \t]+\.?$|^[ \t]", "", text, flags=re.M))
        found = set()
        for block in blocks:
            files, name = block.get("files", "").split(), block.get("license", "").partition("\n")[0].strip()
            if name and files and not all(pattern.startswith("debian/") for pattern in files):
                found.add(self.expression(package, name, texts))
        return " AND ".join(sorted(found)) or NO_ASSERTION


FIELDS = "${Version}\t${source:Package}\t${source:Version}\t${Architecture}\t${Maintainer}\t${Homepage}"


def describe(package, licences):
    """A package of this machine as SPDX has it."""
    version, source, source_version, architecture, maintainer, homepage = said(
        "dpkg-query", "-W", "-f", FIELDS, package).split("\t")
    name = package.split(":")[0]
    match = re.fullmatch(r"(.*?)\s*<(.*)>", maintainer)
    return {"SPDXID": identifier("Package", name), "name": name, "versionInfo": version,
            "supplier": f"Organization: {match[1]} ({match[2]})" if match else NO_ASSERTION,
            "downloadLocation": NO_ASSERTION, "filesAnalyzed": False, **({"homepage": homepage} if homepage else {}),
            "sourceInfo": f"Debian's source package {source} {source_version}", "licenseConcluded": NO_ASSERTION,
            "licenseDeclared": licences.declared(package, f"/usr/share/doc/{name}/copyright"),
            "copyrightText": NO_ASSERTION, "externalRefs": [purl(f"debian/{name}", version, architecture)]}


def purl(name, version, architecture):
    version = version.replace("+", "%2B").replace(":", "%3A")
    return {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
            "referenceLocator": f"pkg:deb/{name}@{version}?arch={architecture}"}


# ---- what is linked ----

def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", said("readelf", "-d", path))


def given(build, name):
    """Files from outside of the build and the tree that went into a program or library of it."""
    made = sorted(pathlib.Path(build).rglob(name))
    if not made:
        sys.exit(f"sbom.py: nothing in {build} is called {name}, which the package has")
    inputs = said("ninja", "-C", build, "-t", "inputs", made[0].relative_to(build)).splitlines()
    return [path for path in inputs if path.startswith("/usr/") and not re.search(r"\.so(\.|$)", path)]


def links(build, path, known):
    """(relationship, package, why) of one file."""
    for name in needed(path):
        if name not in known:
            sys.exit(f"sbom.py: {path} needs {name}, which this machine does not have")
        yield "DYNAMIC_LINK", owner(known[name]), name
    for source in given(build, path.name):
        yield "STATIC_LINK" if source.endswith(".a") else "CONTAINS", owner(source), source


# ---- the document ----

def describe_file(root, path):
    data = path.read_bytes()
    name = str(path.relative_to(root))
    return {"SPDXID": identifier("File", name), "fileName": f"./{name}",
            "fileTypes": ["BINARY" if data[:4] == ELF else "OTHER"],
            "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
                          {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()}],
            "licenseConcluded": NO_ASSERTION, "copyrightText": NO_ASSERTION}


def files_of(root, own):
    """[(path, SPDX's element)] of a package, but for this document and what dpkg keeps itself."""
    return [(path, describe_file(root, path)) for path in sorted(root.rglob("*"))
            if path.is_file() and not path.is_symlink() and path != own and path.relative_to(root).parts[0] != "DEBIAN"]


def describe_own(package, version, architecture, files, excluded, licence):
    """The package whose bill this is; its code is that of SPDX 2.3, section 7.9."""
    sums = sorted(one["checksums"][0]["checksumValue"] for _, one in files)
    return {"SPDXID": identifier("Package", package), "name": package, "versionInfo": version,
            "supplier": "Organization: The maintainers of ampd", "downloadLocation": NO_ASSERTION,
            "filesAnalyzed": True, "packageVerificationCode": {
                "packageVerificationCodeValue": hashlib.sha1("".join(sums).encode()).hexdigest(),
                "packageVerificationCodeExcludedFiles": [excluded]},
            "licenseConcluded": NO_ASSERTION, "licenseDeclared": licence, "licenseInfoFromFiles": [NO_ASSERTION],
            "copyrightText": NO_ASSERTION,
            "primaryPackagePurpose": "LIBRARY" if package.startswith("lib") else "APPLICATION",
            "externalRefs": [purl(f"ampd/{package}", version, architecture)]}


def relation(one, kind, other, why=""):
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other,
            **({"comment": why} if why else {})}


def relate(build, own, files, licences):
    """(packages of Debian, relationships) of all files."""
    known, others, found = libraries(), {}, [relation("SPDXRef-DOCUMENT", "DESCRIBES", own)]
    for path, one in files:
        found.append(relation(own, "CONTAINS", one["SPDXID"]))
        if one["fileTypes"] == ["BINARY"]:
            for kind, other, why in sorted(set(links(build, path, known))):
                others.setdefault(other, describe(other, licences))
                found.append(relation(one["SPDXID"], kind, others[other]["SPDXID"], why))
    return [others[name] for name in sorted(others)], found


def main(package, version, build, root):
    root, licences = pathlib.Path(root), Licences()
    architecture = os.environ.get("DEB_HOST_ARCH") or said("dpkg", "--print-architecture").strip()
    bill = root / "usr/share/doc" / package / f"{package}_{architecture}.spdx.json"
    files = files_of(root, bill)
    own = describe_own(package, version, architecture, files, f"./{bill.relative_to(root)}",
                       licences.declared(package, bill.with_name("copyright")))
    others, relations = relate(build, own["SPDXID"], files, licences)
    created = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    code = own["packageVerificationCode"]["packageVerificationCodeValue"]
    document = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
                "name": f"{package}-{version}",
                "documentNamespace": f"https://ampd.invalid/spdx/{package}_{version}_{architecture}-{code}",
                "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
                                 "creators": [f"Tool: sbom.py-{version}"]},
                "packages": [own, *others], "files": [one for _, one in files], "relationships": relations}
    if licences.quoted:
        document["hasExtractedLicensingInfos"] = [licences.quoted[name] for name in sorted(licences.quoted)]
    bill.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
