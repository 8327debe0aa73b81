#!/usr/bin/python3
"""The bills of materials that deploy/sbom.py writes: they have what SPDX 2.3 requires, and name all that is linked.

    test_sbom.py BUILD_DIR             of the programs of a build
    test_sbom.py --packages FOLDER     of the Debian packages in FOLDER
"""
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WITH_BILL = {"ampd", "ampd-tools", "libampclient0"}
IDENTIFIER = re.compile(r"SPDXRef-[A-Za-z0-9.-]+")
LICENCE = re.compile(r"LicenseRef-[A-Za-z0-9.-]+|[A-Za-z0-9.-]+")
# Of SPDX's list, the ones that these packages have; another one is to be looked up there, then added here.
LISTED = re.compile(r"MIT|Apache-2\.0|Artistic-1\.0-Perl|BSD-[234]-Clause|BSL-1\.0|CC0-1\.0|ISC|Zlib"
                    r"|(L?GPL|GFDL)-\d\.\d-(only|or-later)")
RELATIONS = {"DESCRIBES", "CONTAINS", "DYNAMIC_LINK", "STATIC_LINK"}


def check_licence(document, text):
    if text == "NOASSERTION":
        return
    quoted = {one["licenseId"] for one in document.get("hasExtractedLicensingInfos", [])}
    for name in set(LICENCE.findall(text)) - {"AND", "OR"}:
        assert name in quoted if name.startswith("LicenseRef-") else LISTED.fullmatch(name), f"{name} of {text}"
    assert text.count("(") == text.count(")") and not re.search(r"[^\w.()\- ]", text), text


def check_package(document, one):
    """Chapter 7: what is mandatory, and the forms."""
    assert one["name"] and one["versionInfo"] and one["downloadLocation"] == "NOASSERTION", one
    assert re.fullmatch(r"(Organization|Person): .+|NOASSERTION", one["supplier"]), one
    assert one["filesAnalyzed"] == ("packageVerificationCode" in one), one
    locator = one["externalRefs"][0]["referenceLocator"]
    assert re.fullmatch(r"pkg:deb/[a-z]+/[a-z0-9.+-]+@[A-Za-z0-9.~%-]+\?arch=[a-z0-9]+", locator), locator
    check_licence(document, one["licenseDeclared"])


def check_form(document):
    """Chapters 6, 7, 8, 10 and 11 of the specification."""
    assert document["spdxVersion"] == "SPDX-2.3" and document["dataLicense"] == "CC0-1.0"
    assert document["SPDXID"] == "SPDXRef-DOCUMENT" and document["name"]
    assert re.fullmatch(r"https://[^#\s]+", document["documentNamespace"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", document["creationInfo"]["created"])
    assert all(re.match(r"(Tool|Person|Organization): .", who) for who in document["creationInfo"]["creators"])
    elements = [document, *document["packages"], *document["files"]]
    names = [one["SPDXID"] for one in elements]
    assert len(set(names)) == len(names) and all(map(IDENTIFIER.fullmatch, names)), names
    for one in document["packages"]:
        check_package(document, one)
    for one in document["files"]:
        assert one["fileName"].startswith("./") and one["checksums"][0]["algorithm"] == "SHA1", one
    for one in document["relationships"]:
        assert {one["spdxElementId"], one["relatedSpdxElement"]} <= set(names), one
        assert one["relationshipType"] in RELATIONS, one
    described = [one["relatedSpdxElement"] for one in document["relationships"]
                 if one["relationshipType"] == "DESCRIBES"]
    assert described == [document["packages"][0]["SPDXID"]], described
    related = {one["relatedSpdxElement"] for one in document["relationships"]}
    assert set(names[1:]) <= related, "elements that are not related to any other"
    for one in document.get("hasExtractedLicensingInfos", []):
        assert one["licenseId"].startswith("LicenseRef-") and one["extractedText"].strip(), one


def check_files(document, root, bill):
    """Each file of the package is there with its hash, and the code over all is right."""
    there = {f"./{path.relative_to(root)}": hashlib.sha1(path.read_bytes()).hexdigest() for path in root.rglob("*")
             if path.is_file() and not path.is_symlink() and path != bill}
    assert there == {one["fileName"]: one["checksums"][0]["checksumValue"] for one in document["files"]}
    code = hashlib.sha1("".join(sorted(there.values())).encode()).hexdigest()
    assert document["packages"][0]["packageVerificationCode"]["packageVerificationCodeValue"] == code


def links_of(document, name):
    """[(kind, package, why)] of a file."""
    by_name = {one["SPDXID"]: one["name"] for one in document["packages"]}
    file, = [one["SPDXID"] for one in document["files"] if one["fileName"] == name]
    return [(one["relationshipType"], by_name[one["relatedSpdxElement"]], one["comment"])
            for one in document["relationships"] if one["spdxElementId"] == file]


def check_links(document, root):
    """What the loader wants of each program is named, and no more; and nanopb, inside all; dygraphs, inside ampd."""
    checked = 0
    for one in document["files"]:
        path = root / one["fileName"]
        if path.read_bytes()[:4] != b"\x7fELF":
            continue
        text = subprocess.run(["readelf", "-d", path], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
        wanted = set(re.findall(r"Shared library: \[(.*)\]", text))
        links = links_of(document, one["fileName"])
        assert wanted and wanted == {why for kind, _, why in links if kind == "DYNAMIC_LINK"}, (wanted, links)
        inside = {name for kind, name, _ in links if kind != "DYNAMIC_LINK"}
        assert "libnanopb-dev" in inside and ("libjs-dygraphs" in inside) == (path.name == "ampd"), inside
        checked += 1
    assert checked > 0


def check(root, package):
    bill, = (root / "usr/share/doc" / package).glob("*.spdx.json")
    text = bill.read_text(encoding="utf-8")
    assert str(ROOT) not in text and "/obj-" not in text, "the bill tells where it was made"
    document = json.loads(text)
    check_form(document)
    check_files(document, root, bill)
    check_links(document, root)
    return document


# ---- of a build ----

def bill_of(build, package, *programs):
    """The document of a package with these files."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "usr/share/doc" / package).mkdir(parents=True)
        (root / "usr/bin").mkdir()
        shutil.copy(ROOT / "deploy/debian/copyright", root / "usr/share/doc" / package)
        for program in programs:
            shutil.copy(build / program, root / "usr/bin")
        subprocess.run([ROOT / "deploy/sbom.py", package, "1.2+3", build, root], check=True,
                       env={**os.environ, "SOURCE_DATE_EPOCH": "1600000000"})
        return check(root, package)


def test_the_bill_of_a_program_names_what_is_linked(build):
    document = bill_of(build, "ampd", "bin/ampd")
    assert document["creationInfo"]["created"] == "2020-09-13T12:26:40Z"
    this, *others = document["packages"]
    assert this["versionInfo"] == "1.2+3" and this["licenseDeclared"] == "Apache-2.0", this
    licences = {one["name"]: one["licenseDeclared"] for one in others}
    assert licences["libjansson4"] != "NOASSERTION" and "MIT" in licences["libjansson4"], licences
    assert all(re.match(r"[0-9]", one["versionInfo"]) for one in others)


def test_the_same_programs_have_the_same_bill(build):
    assert bill_of(build, "ampd-tools", "bin/ampctl") == bill_of(build, "ampd-tools", "bin/ampctl")


def test_licences_of_debian_are_spdx_expressions(_build):
    sys.path.insert(0, str(ROOT / "deploy"))
    import sbom  # noqa: PLC0415 (a program beside)
    licences = sbom.Licences()
    for text, expected in (
            ("GPL-2+", "GPL-2.0-or-later"), ("LGPL-2.1", "LGPL-2.1-only"), ("Expat or ISC", "(MIT OR ISC)"),
            ("Expat and zlib or GPL-3", "((MIT AND Zlib) OR GPL-3.0-only)"),
            ("GPL-2 or Artistic, and BSD-3-clause", "((GPL-2.0-only OR Artistic-1.0-Perl) AND BSD-3-Clause)"),
            ("GPL-2+ with OpenSSL exception", "LicenseRef-p-GPL-2-with-OpenSSL-exception")):
        said = licences.expression("p:amd64", text, {})
        assert said == expected, (text, said)
    assert list(licences.quoted) == ["LicenseRef-p-GPL-2-with-OpenSSL-exception"]
    assert sbom.paragraphs("This package was debianized by hand.\n\nLicense: GPL\n") == []


def packages(folder):
    seen = set()
    for package in sorted(pathlib.Path(folder).glob("*.deb")):
        name = package.name.partition("_")[0]
        with tempfile.TemporaryDirectory() as content:
            subprocess.run(["dpkg-deb", "-x", package, content], check=True)
            has_bill = any(pathlib.Path(content).rglob("*.spdx.json"))
            assert has_bill == (name in WITH_BILL), name
            if has_bill:
                document = check(pathlib.Path(content), name)
                others = document["packages"][1:]
                with_licence = sum(one["licenseDeclared"] != "NOASSERTION" for one in others)
                print(f"figure: {name} is linked of {len(others)} packages of Debian, {with_licence} with a licence")
                seen.add(name)
    assert seen == WITH_BILL, seen


def main():
    if sys.argv[1] == "--packages":
        packages(sys.argv[2])
        return 0
    if shutil.which("dpkg-query") is None or shutil.which("ninja") is None:
        print("SKIPPED: test_sbom.py: no dpkg or no ninja")
        return 77
    build = pathlib.Path(sys.argv[1]).resolve()
    for name, test in list(globals().items()):
        if name.startswith("test_") and (len(sys.argv) < 3 or name.removeprefix("test_") in sys.argv[2:]):
            test(build)
            print(f"[       OK ] {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
