#!/usr/bin/python3
"""Of the pages for readers of the code each file and each name in backquotes is there; of all pages each link leads to
a page and a heading; and each page that the code names is there.

    test_docs_names.py SOURCE_DIR
"""
import pathlib
import re
import sys

PAGES = ("tour.md", "architecture.md", "step-protocol.md")
PATH = re.compile(r"`((?:amp|base|bench|client|deploy|docs|examples|proto|rpc|scripts|server|storage|tests)/[\w./-]*)`")
NAME = re.compile(r"`([a-z]+(?:_[a-z0-9]+)+)`")
PAGE = re.compile(r"\bdocs/[\w-]+\.md")
LINK = re.compile(r"\]\(([\w./-]*)(?:#([\w-]+))?\)")


def anchors_of(page):
    """GitHub's: lower case, spaces as hyphens, nothing else but letters, digits, hyphens and underscores."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def faults_of(source, page, code):
    text = page.read_text()
    yield from (f"no file {path}" for path in PATH.findall(text) if not (source / path).exists())
    yield from (f"no name {name} in the code" for name in NAME.findall(text) if not re.search(rf"\b{name}\b", code))


def broken_links(page):
    for target, anchor in LINK.findall(re.sub(r"`[^`\n]*`", "", page.read_text())):
        to = page.parent / target if target else page
        if not to.exists():
            yield f"no page {target}"
        elif anchor and anchor not in anchors_of(to):
            yield f"no heading {anchor} in {target}"


def main(source):
    code = "\n".join(path.read_text() for folder in ("amp", "client", "examples", "proto", "rpc", "server", "storage")
                     for path in (source / folder).rglob("*") if path.suffix in (".c", ".h", ".def", ".proto"))
    wrong = [f"docs/{page}: {fault}" for page in PAGES for fault in faults_of(source, source / "docs" / page, code)]
    wrong += [f"the code names {page}" for page in sorted(set(PAGE.findall(code))) if not (source / page).exists()]
    pages = [source / "README.md", *sorted((source / "docs").glob("*.md"))]
    wrong += [f"{page.relative_to(source)}: {fault}" for page in pages for fault in broken_links(page)]
    print("\n".join(wrong) if wrong else f"{len(pages)} pages hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
