#!/usr/bin/python3
"""check_style.py [ROOT]: the limits of the house style, over all tracked and untracked files.

Functions of at most 70 lines (from the opening to the closing brace), files of at most 800, headers of at most 150,
lines of at most 120 columns, sizeof in one form, tests that need no sleep, no port and no wall clock where they promise
so, formats of the log that it can take, and citations ("step-protocol.md section 6") of sections that are there. Prints
FILE:LINE: RULE for each violation and exits with 1.
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import c_source  # noqa: E402
import not_yet  # noqa: E402

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
HEADER_LINES_MAX = 150
WIDTH_MAX = 120

C_SOURCE = re.compile(r"\.(c|h|def|inc)$")
COUNTED = re.compile(r"(\.(c|h|def|inc|sh|py|proto|cmake|cc)|(^|/)CMakeLists\.txt)$")
HEADER = re.compile(r"\.h$")
WIDE = re.compile(r"\.(c|h|def|inc|cc|py)$")
QUIET_TEST = re.compile(r"^tests/(unit|specs|sim|kernels)/")
CITING = re.compile(r"\.(md|pml)$")
CITATION = re.compile(r"\b([a-z][a-z-]*\.md),? sections? (\d+)(?: and (\d+))?")

# Exemptions: path or path:function -> the reason. Only a flat dispatch switch may ask for one as a function.
EXEMPT_FUNCTIONS = {}
EXEMPT_FILES = {}
EXEMPT_TESTS = {"tests/sim/main.c": "with --seconds the clock decides how many seeds are run; no seed depends on it"}
EXEMPT_HEADERS = {
    "client/ampclient.h": "the public interface of the client",
    "amp/fsdp.h": "a public interface of amp",
    "amp/optim.h": "a public interface of amp",
    "proto/msg_admin.h": "one struct and codec for each message of a .proto",
    "proto/msg_common.h": "one struct and codec for each message of a .proto",
    "proto/msg_etcd.h": "one struct and codec for each message of a .proto",
    "proto/msg_model.h": "one struct and codec for each message of a .proto",
    "proto/msg_scale.h": "one struct and codec for each message of a .proto",
    "proto/msg_step.h": "one struct and codec for each message of a .proto",
    "proto/msg_worker.h": "one struct and codec for each message of a .proto",
}


QUIET_RULES = (
    (c_source.call_of("sleep", "usleep", "nanosleep", "clock_nanosleep", "uv_sleep", "alarm", "setitimer",
                      "timer_settime", "uv_timer_start"), "sleep or timer in a test that promises none"),
    (c_source.call_of("socket", "bind", "listen", "accept4?", "connect", "getaddrinfo", "uv_listen", "uv_accept",
                      "uv_tcp_\\w+", "uv_pipe_bind", "uv_pipe_connect", "uv_udp_\\w+"),
     "port in a test that promises none"),
    (c_source.call_of("clock_gettime", "clock", "time", "gettimeofday", "timespec_get", "uv_hrtime", "uv_now",
                      "uv_update_time", "uv_clock_gettime"), "wall clock in a test that promises none"),
)

# A line of the log: the call up to the semicolon, its texts with the macros between them, and what base/log.c converts.
LOG_CALL = re.compile(r'\bamp_log\(((?:"(?:[^"\\]|\\.)*"|[^;"])*);')
LOG_FORMAT = re.compile(r'"((?:[^"\\]|\\.)*)"|\b(PRI\w+)')
LOG_CONVERSION = re.compile(r"%(?!%|(?:l{0,2}|z)(?:s|d|u)|PRI[ud](?:16|32|64|MAX)\b)")

# sizeof of an expression stands without parentheses, that of a type has them, without a blank: one form for each. What
# begins with a parenthesis itself, or has an operator between two operands, keeps the outer ones.
SIZEOF = re.compile(r"\bsizeof( ?)\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
SIZEOF_TYPE = re.compile(r"(?:(?:const|volatile|unsigned|signed|struct|union|enum|char|short|int|long|float|double|void"
                         r"|bool|_Bool)\b|\w+_t\b|__m\d|[A-Z]|\w+_[A-Z])")
SIZEOF_KEEPS = re.compile(r"\(|.* [-+*/] ")

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


def tree_of(path):
    """How a list in not_yet.py names a file: the tree and the name, so that a file may move in its tree."""
    return "%s/%s" % (path.split("/")[0], os.path.basename(path))


def check_lines(report, path, text):
    """Width and, of headers, number."""
    if WIDE.search(path):
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > WIDTH_MAX:
                report.say(not_yet.WIDE, tree_of(path), "%s:%d" % (path, number),
                           "%d columns, the limit is %d" % (len(line), WIDTH_MAX))
    lines = text.count("\n")
    if HEADER.search(path) and lines > HEADER_LINES_MAX and path not in EXEMPT_HEADERS:
        report.say(not_yet.HEADERS, tree_of(path), "%s:1" % path,
                   "%d lines, the limit of a header is %d" % (lines, HEADER_LINES_MAX))
    elif HEADER.search(path) and lines > HEADER_LINES_MAX:
        report.say(EXEMPT_HEADERS, path, path, "")


def check_sizeof(report, path, text):
    bare = c_source.strip_comments_and_strings(text)
    for match in SIZEOF.finditer(bare):
        blank, operand = match.groups()
        if SIZEOF_KEEPS.match(operand):
            continue
        if not SIZEOF_TYPE.match(operand):
            report.say(not_yet.SIZEOF, tree_of(path), "%s:%d" % (path, c_source.line_of(bare, match.start())),
                       "sizeof of an expression has no parentheses: sizeof %s" % operand)
        elif blank:
            report.say(not_yet.SIZEOF, tree_of(path), "%s:%d" % (path, c_source.line_of(bare, match.start())),
                       "sizeof of a type has no blank: sizeof(%s)" % operand)


def check_file(report, path, text):
    lines = text.count("\n")
    check_lines(report, path, text)
    if COUNTED.search(path) and lines > FILE_LINES_MAX:
        report.say(EXEMPT_FILES, path, "%s:1" % path, "%d lines, the limit is %d" % (lines, FILE_LINES_MAX))
    if not C_SOURCE.search(path):
        return
    check_sizeof(report, path, text)
    for name, line, length in functions(text):
        if length > FUNCTION_LINES_MAX:
            report.say(EXEMPT_FUNCTIONS, "%s:%s" % (path, name), "%s:%d" % (path, line),
                       "%s has %d lines, the limit is %d" % (name, length, FUNCTION_LINES_MAX))
    for match in LOG_CALL.finditer(text):
        written = "".join(literal or macro + " " for literal, macro in LOG_FORMAT.findall(match.group(1)))
        if LOG_CONVERSION.search(written):
            report.say({}, path, "%s:%d" % (path, c_source.line_of(text, match.start())),
                       "a line of the log has the conversions %s, %d and %u alone (base/log.h)")
    if QUIET_TEST.search(path):
        bare = c_source.strip_comments_and_strings(text)
        for pattern, rule in QUIET_RULES:
            for match in pattern.finditer(bare):
                report.say(EXEMPT_TESTS, path, "%s:%d" % (path, c_source.line_of(bare, match.start())),
                           "%s: %s" % (match.group().rstrip(" \t\n("), rule))


def sections(root, page):
    """The numbers of a document's sections ("## 6. Recovery"); none, if there is no such document."""
    if not os.path.isfile(os.path.join(root, "docs", page)):
        return ()
    return re.findall(r"^## (\d+)\.", c_source.read(root, "docs/" + page), re.MULTILINE)


def check_citations(report, root, path, text):
    for match in CITATION.finditer(text):
        for number in (match.group(2), match.group(3)):
            if number is not None and number not in sections(root, match.group(1)):
                report.say({}, path, "%s:%d" % (path, c_source.line_of(text, match.start())),
                           "docs/%s has no section %s" % (match.group(1), number))


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    report = Report()
    files = [path for path in c_source.list_files(root) if COUNTED.search(path) or CITING.search(path)]
    for path in files:
        text = c_source.read(root, path)
        check_file(report, path, text)
        if not path.startswith("scripts/"):
            check_citations(report, root, path, text)
    lists = (EXEMPT_FUNCTIONS, EXEMPT_FILES, EXEMPT_TESTS, EXEMPT_HEADERS, not_yet.WIDE, not_yet.SIZEOF,
             not_yet.HEADERS)
    for exempt in lists if len(sys.argv) == 1 else ():
        report.say_unused(exempt)  # another tree has none of these files
    print("style: %d files, %d violations" % (len(files), report.count))
    return 1 if report.count else 0


if __name__ == "__main__":
    sys.exit(main())
