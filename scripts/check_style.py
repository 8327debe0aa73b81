#!/usr/bin/python3
"""check_style.py [ROOT]: the limits of the house style, over all tracked and untracked files.

Functions of at most 70 lines (from the opening to the closing brace), files of at most 800, and tests that need no
sleep, no port and no wall clock where they promise so. Prints FILE:LINE: RULE for each violation and exits with 1.
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import c_source  # noqa: E402

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800

C_SOURCE = re.compile(r"\.(c|h|def|inc)$")
COUNTED = re.compile(r"(\.(c|h|def|inc|sh|py|proto|cmake|cc)|(^|/)CMakeLists\.txt)$")
QUIET_TEST = re.compile(r"^tests/(unit|sim|kernels)/")

# Exemptions: path or path:function -> the reason. Only a flat dispatch switch may ask for one as a function.
EXEMPT_FUNCTIONS = {}
EXEMPT_FILES = {}
EXEMPT_TESTS = {"tests/sim/main.c": "with --seconds the clock decides how many seeds are run; no seed depends on it"}


QUIET_RULES = (
    (c_source.call_of("sleep", "usleep", "nanosleep", "clock_nanosleep", "uv_sleep", "alarm", "setitimer", "timer_settime",
           "uv_timer_start"), "sleep or timer in a test that promises none"),
    (c_source.call_of("socket", "bind", "listen", "accept4?", "connect", "getaddrinfo", "uv_listen", "uv_accept", "uv_tcp_\\w+",
           "uv_pipe_bind", "uv_pipe_connect", "uv_udp_\\w+"), "port in a test that promises none"),
    (c_source.call_of("clock_gettime", "clock", "time", "gettimeofday", "timespec_get", "uv_hrtime", "uv_now", "uv_update_time",
           "uv_clock_gettime"), "wall clock in a test that promises none"),
)

# The head of a definition ends in a parameter list; parentheses nest at most three deep there.
FUNCTION_HEAD = re.compile(r"(\w+)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*$")
PREPROCESSOR = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
LINKAGE = re.compile(r'extern\s+"[^"]*"\s*$')


def functions(text):
    """Yields (name, first line, number of lines) of the functions defined in a C text."""
    bare = c_source.strip_comments_and_strings(text)
    bare = PREPROCESSOR.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), bare)
    depth, start, head_from, name = 0, 0, 0, None
    for match in re.finditer(r"[{};]", bare):
        mark, at = match.group(), match.start()
        if mark == "{":
            head = bare[head_from:at]
            if depth == 0 and LINKAGE.search(head):
                head_from = at + 1
                continue
            if depth == 0:
                found = FUNCTION_HEAD.search(head)
                name = found.group(1) if found and "=" not in head else None
                start = at
            depth += 1
        elif mark == "}" and depth > 0:
            depth -= 1
            if depth == 0:
                if name is not None:
                    yield name, c_source.line_of(bare, start), bare.count("\n", start, at) + 1
                name, head_from = None, at + 1
        elif depth == 0:
            head_from = at + 1


class Report:
    def __init__(self):
        self.count = 0
        self.used = set()

    def say(self, exempt, key, place, rule):
        """Counts and prints a violation, unless the list of exemptions names it."""
        if key in exempt:
            self.used.add((id(exempt), key))
            return
        print("%s: %s" % (place, rule))
        self.count += 1

    def say_unused(self, exempt):
        for key in exempt:
            if (id(exempt), key) not in self.used:
                print("scripts/check_style.py: the exemption of %s is no longer needed" % key)
                self.count += 1


def check_file(report, path, text):
    lines = text.count("\n")
    if COUNTED.search(path) and lines > FILE_LINES_MAX:
        report.say(EXEMPT_FILES, path, "%s:1" % path, "%d lines, the limit is %d" % (lines, FILE_LINES_MAX))
    if not C_SOURCE.search(path):
        return
    for name, line, length in functions(text):
        if length > FUNCTION_LINES_MAX:
            report.say(EXEMPT_FUNCTIONS, "%s:%s" % (path, name), "%s:%d" % (path, line),
                       "%s has %d lines, the limit is %d" % (name, length, FUNCTION_LINES_MAX))
    if QUIET_TEST.search(path):
        bare = c_source.strip_comments_and_strings(text)
        for pattern, rule in QUIET_RULES:
            for match in pattern.finditer(bare):
                report.say(EXEMPT_TESTS, path, "%s:%d" % (path, c_source.line_of(bare, match.start())),
                           "%s: %s" % (match.group().rstrip(" \t\n("), rule))


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    report = Report()
    files = [path for path in c_source.list_files(root) if COUNTED.search(path)]
    for path in files:
        check_file(report, path, c_source.read(root, path))
    for exempt in (EXEMPT_FUNCTIONS, EXEMPT_FILES, EXEMPT_TESTS) if len(sys.argv) == 1 else ():
        report.say_unused(exempt)  # another tree has none of these files
    print("style: %d files, %d violations" % (len(files), report.count))
    return 1 if report.count else 0


if __name__ == "__main__":
    sys.exit(main())
