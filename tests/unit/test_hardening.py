#!/usr/bin/python3
"""What the release build promises of its programs (docs/security.md, "The programs"), by readelf and objdump.

    test_hardening.py PROGRAM...
"""
import platform
import re
import subprocess
import sys

X86 = platform.machine() in ("x86_64", "AMD64")
ENTRY = "endbr64" if X86 else r"(bti|paciasp)"
# A large frame is made page by page, and each is touched before the next one: gcc ors a zero there, clang moves one.
PROBE = r"sub +\$0x1000,%rsp\n.*(or|mov)[lq] +\$0x0,(0x[0-9a-f]+)?\(%rsp\)" if X86 else r"str +xzr, \[sp"


def said(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8", timeout=240).stdout


def missing(program):
    """What the program lacks, in words."""
    head, dynamic = said("readelf", "-hlW", program), said("readelf", "-dW", program)
    symbols = set(re.findall(r" (\w+)@", said("readelf", "--dyn-syms", "-W", program)))
    code = said("objdump", "-d", "--no-show-raw-insn", program)
    entries = re.findall(r"^[0-9a-f]+ <(?:main|ampclient_\w+)>:\n +[0-9a-f]+:\s+(.*)$", code, re.M)
    found = {
        "position independence": re.search(r"Type: +DYN", head),
        "a stack that is not executable": re.search(r"GNU_STACK .* RW +0x", head),
        "read-only relocations": "GNU_RELRO" in head,
        "binding at the start": "BIND_NOW" in dynamic or re.search(r"FLAGS_1.*\bNOW\b", dynamic),
        "guards of the stack": "__stack_chk_fail" in symbols,
        "checked copies": any(name.endswith("_chk") and name.startswith("__") and name != "__stack_chk_fail" for name in symbols),
        "probes of large frames": re.search(PROBE, code),
        "marked targets of jumps": entries and all(re.match(ENTRY, first) for first in entries),
    }
    return [what for what, there in found.items() if not there]


def main():
    failed = 0
    for program in sys.argv[1:]:
        lacks = missing(program)
        failed += bool(lacks)
        print(f"{'not ok' if lacks else 'ok'} {program}: {'without ' + ', '.join(lacks) if lacks else 'all of it'}", flush=True)
    sys.exit(1 if failed or len(sys.argv) < 2 else 0)


main()
