#!/usr/bin/python3
"""h2spec_report.py REPORT EXCEPTIONS: one line for each case of h2spec's JUnit report, in the form that test.sh counts.

A case that fails must be on the list of exceptions, and one that is on the list must fail.
"""
import re
import sys
import xml.etree.ElementTree

CASES = 146  # of h2spec 2.2.1 with --strict; fewer would mean that it ended early

with open(sys.argv[2]) as lines:
    accepted = {line.split(" ", 1)[1].strip() for line in lines if line.startswith("h2spec ")}
with open(sys.argv[1], "rb") as file:
    report = file.read().decode(errors="replace")
# The text of a case that fails may hold bytes of a frame as they came, which no XML may.
report = re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd]", "?", report)
seen, broken = 0, 0
for case in xml.etree.ElementTree.fromstring(report).iter("testcase"):
    name = "%s %s" % (case.get("package"), case.get("classname"))
    seen += 1
    passed = len(case) == 0
    if passed != (name in accepted):
        print("[       OK ] h2spec %d %s%s" % (seen, name, "" if passed else " (an accepted exception)"))
        continue
    broken += 1
    print("[  FAILED  ] h2spec %d %s" % (seen, name))
    print("passes, but is on the list of exceptions" if passed else "; ".join(case[0].itertext()))
print("h2spec: %d cases, %d exceptions, %d failed" % (seen, len(accepted), broken))
sys.exit(broken != 0 or seen != CASES)
