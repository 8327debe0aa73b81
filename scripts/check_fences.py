#!/usr/bin/python3
"""check_fences.py [ROOT]: who may include and call what (docs/architecture.md, section 3), over all sources,
tracked or not.

Prints one line per violation, FILE:LINE: RULE, and exits with 1 if there is any. The rules are the tables below; a
rule that is not in a table does not exist.
"""
import os
import re
import sys

sys.dont_write_bytecode = True
import c_source  # noqa: E402

SOURCE = re.compile(r"\.(c|h|def|inc|cc|cpp|hh|hpp)$")
EVERYTHING = ("",)

# Which folder a file is in: the first prefix that fits. "server/" and "client/" are what stands beside the subfolders:
# the server's main.c and methods.def, the client's public header.
FOLDERS = ("base/", "amp/", "proto/", "rpc/", "storage/", "server/core/", "server/io/", "server/config/", "server/",
         "client/core/",
         "client/io/", "client/ampctl/", "client/", "examples/", "tests/", "bench/")

# What a folder may include: path prefixes, besides its own. The io folders and ampctl see base and amp through the
# headers that they may include anyway.
MAY_INCLUDE = {
    "base/": (),
    "amp/": ("base/",),
    "proto/": ("base/",),
    "rpc/": ("base/", "proto/grpc/"),
    # The table of a specification's fields is for all who have one: it is names and numbers alone.
    "storage/": ("base/", "amp/", "proto/spec_fields."),
    "server/core/": ("base/", "amp/", "storage/records", "proto/spec_fields."),
    "server/io/": ("server/", "rpc/", "proto/", "storage/", "base/", "amp/"),
    "server/config/": ("server/io/", "base/"),
    "server/": ("server/", "rpc/", "proto/", "storage/", "base/", "amp/"),
    "client/core/": ("base/", "amp/"),
    "client/io/": ("client/core/", "client/ampclient.h", "rpc/", "proto/", "base/", "amp/"),
    # Of storage the files alone, for export: no store, no SQLite.
    "client/ampctl/": ("client/io/", "client/core/", "client/ampclient.h", "rpc/", "proto/", "base/", "amp/",
                       "storage/checkpoint.h", "storage/checkpoint_remove.h", "storage/records_memory.h"),
    "client/": ("base/", "amp/"),
    "examples/": ("client/ampclient.h", "amp/"),
    "tests/": EVERYTHING,
    "bench/": EVERYTHING,
}

# The folders inside a folder, from the bottom up; "." is what lies in it directly. Each may include those of the rows
# before its own, and itself: of two in one row neither includes the other. A file lies in one of them.
FLOORS = {
    "server/core/": (("model",), (".",), ("base",), ("wire",), ("shard", "coordinator"), ("process",)),
    "server/io/": (("base",), ("etcd", "auth"), ("cluster",), ("host",), ("calls",), ("history",), ("page",),
                   ("http",), ("process",)),
    "client/ampctl/": ((".",), ("view", "events"), ("actions", "files")),
}
# .c files of one such folder.
SOURCES_MAX = 24

# Folder prefixes that a quoted include may begin with; anything else is not written from the root.
TOP = tuple(sorted({folder.split("/")[0] + "/" for folder in FOLDERS}))

NANOPB = re.compile(r"^(pb\.h|pb_\w+\.h|.*\.pb\.h)$")
INTRINSICS = re.compile(r"^(x86intrin|[a-z]?mmintrin|nmmintrin|avx\w*intrin|arm_neon|arm_sve|arm_bf16|arm_fp16)\.h$")
TESTING = r"^(tests|bench)/"
MAINS = r"(^|/)main\.c$|^client/ampctl/|^examples/|" + TESTING

# Third-party headers: (name, header pattern, where allowed, the rule in words).
HEADERS = (
    ("uv", re.compile(r"^uv(\.h|/)"), re.compile(r"(^|/)io/|(^|/)main\.c$|^client/ampctl/|" + TESTING),
     "<uv.h> only in */io/ and mains"),
    ("nghttp2", re.compile(r"^nghttp2/"), re.compile(r"^rpc/(.*/)?h2[^/]*(/|$)|" + TESTING),
     "nghttp2 only in the h2 files of rpc"),
    ("openssl", re.compile(r"^openssl/"), re.compile(r"^rpc/io/tls\w*\.c$|(^|/)io/tokens?\.c$|" + TESTING),
     "openssl only in rpc/io/tls*.c and where tokens are hashed (io/token.c)"),
    ("sqlite3", re.compile(r"^sqlite3(ext)?\.h$"), re.compile(r"^storage/|" + TESTING), "sqlite3 only in storage"),
    ("nanopb", NANOPB, re.compile(r"^(proto|rpc)/|" + TESTING), "nanopb only in proto and rpc"),
    ("microhttpd", re.compile(r"^microhttpd\.h$"), re.compile(r"^server/io/http/http\.c$|" + TESTING),
     "microhttpd only in server/io/http/http.c"),
    ("ncurses", re.compile(r"^(ncurses|curses|ncursesw/\w+)\.h$"),
     re.compile(r"^client/ampctl/view/top\.c$|" + TESTING), "ncurses only in client/ampctl/view/top.c"),
    ("zlib", re.compile(r"^zlib\.h$"), re.compile(r"^rpc/wire/inflate\.c$|" + TESTING),
     "zlib only in rpc/wire/inflate.c"),
    ("matrices", re.compile(r"^(cblas|dnnl|oneapi/dnnl/dnnl)\.h$"),
     re.compile(r"^examples/charlm/product\.c$|^bench/|" + TESTING),
     "cblas and dnnl only in examples/charlm/product.c and bench/"),
    ("intrinsics", INTRINSICS, re.compile(r"^amp/kernels/(?!ref\b)\w+(\.c|_(parts|late|tuning)\.h)$|" + TESTING),
     "intrinsics only in amp/kernels/<isa>.c and its parts"),
)

# The simulator and the cores are linked without these; a header would be the first step to it.
SIMULATOR = re.compile(r"^tests/sim/")
SIMULATOR_BANNED = ("uv", "nghttp2", "openssl", "sqlite3")


OUTSIDE_WORLD = re.compile(r"(^|/)io/|(^|/)config(\.[ch]$|/)|" + MAINS)

# What only the rim may ask of the system: (pattern, whether it is looked for inside strings, the rule in words).
CALLS = (
    (c_source.call_of("clock_gettime", "clock_getres", "clock", "time", "gettimeofday", "timespec_get", "ftime",
                      "uv_hrtime", "uv_now", "uv_clock_gettime", "uv_gettimeofday", "nanosleep",
                      "clock_nanosleep", "usleep", "sleep", "uv_sleep"),
     False, "clocks only in io/, mains and config"),
    (c_source.call_of("getrandom", "getentropy", "rand", "rand_r", "srand", "random", "srandom", "[dlm]rand48",
                      "[en]rand48", "arc4random\\w*", "uv_random"), False, "randomness only in io/, mains and config"),
    (re.compile(r"/dev/u?random\b"), True, "randomness only in io/, mains and config"),
    (c_source.call_of("getenv", "secure_getenv", "setenv", "putenv", "unsetenv", "uv_os_getenv", "uv_os_setenv"), False,
     "the environment only in io/, mains and config"),
    (c_source.call_of("exit", "_exit", "_Exit", "quick_exit"), False, "exit only in io/, mains and config"),
)
# ampctl shows what others have written: one place makes it harmless for a terminal. What table.c prints has been there;
# token.c prints a secret, which must leave no copies.
PRINT = c_source.call_of("printf", "fprintf", "vprintf", "vfprintf", "dprintf", "perror")
PRINTS = re.compile(r"^client/ampctl/(?!(print|table|actions/token)\.c$)")
BUILTIN = re.compile(r"\b__builtin_(ia32|neon|aarch64)_\w+")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE)
FT_POINTER = re.compile(r"\bFT_POINTER\b")


def folder_of(path):
    return next((folder for folder in FOLDERS if path.startswith(folder)), None)


def part_of(path, folder):
    """The folder inside `folder` that a file is in."""
    return path[len(folder):].split("/")[0] if path.count("/") > folder.count("/") else "."


def floor_of(path, folder):
    """Its row of FLOORS; None: it is in none of them."""
    return next((floor for floor, parts in enumerate(FLOORS[folder]) if part_of(path, folder) in parts), None)


def check_floor(path, name, folder):
    """Yields the rule of the folders inside `folder` that this include breaks."""
    below, own = floor_of(name, folder), floor_of(path, folder)
    if name.startswith(folder) and below is None:
        yield "%s: it is in none of the folders of %s" % (name, folder.rstrip("/"))
    elif (name.startswith(folder) and own is not None and below >= own and
          part_of(name, folder) != part_of(path, folder)):
        yield "%s: %s%s/ may include only the folders below it: %s" % (
            name, folder, part_of(path, folder),
            ", ".join(part for floor in FLOORS[folder][:own] for part in floor) or "none")


def check_sizes(files):
    """Yields (folder, rule) for each folder inside those of FLOORS with too many sources."""
    sources = [path.rsplit("/", 1)[0] for path in files if path.startswith(tuple(FLOORS)) and path.endswith(".c")]
    for folder in sorted(set(sources)):
        if sources.count(folder) > SOURCES_MAX:
            yield folder, "%d sources, at most %d may be in one folder" % (
                sources.count(folder), SOURCES_MAX)


def generated_owner(name):
    """The folder that a generated header stands for: the build writes proto/ampd/v1/x.pb.h, with or without proto/."""
    return name if name.startswith("proto/") else "proto/" + name


def check_include(path, folder, name, quoted):
    """Yields the rules that this include breaks."""
    for kind, header, allowed, rule in HEADERS:
        if not header.match(name.rsplit("/", 1)[-1] if kind in ("nanopb", "intrinsics") else name):
            continue
        if not allowed.search(path):
            yield "%s: %s" % (name, rule)
        elif SIMULATOR.match(path) and kind in SIMULATOR_BANNED:
            yield "%s: the simulator knows no %s" % (name, kind)
    if name.endswith(".pb.h"):
        # One that only the library itself brings (google/protobuf) belongs to nobody's schema.
        name = generated_owner(name)
    elif not quoted and not name.startswith(TOP):
        return
    elif re.match(r"^pb(_\w+)?\.h$", name):
        return
    elif not name.startswith(TOP):
        yield '"%s": includes are written from the root, from one of the folders' % name
        return
    if folder in FLOORS:
        yield from check_floor(path, name, folder)
    if name.startswith("proto/google/") or folder_of(name) == folder:
        return
    if not name.startswith(MAY_INCLUDE[folder]):
        yield "%s: %s may include only %s" % (name, folder, ", ".join((folder,) + MAY_INCLUDE[folder]))


def check_source(path, text):
    """Yields (position, rule)."""
    folder = folder_of(path)
    if folder is None:
        yield 0, "a source outside the folders of the layout"
        return
    if folder in FLOORS and floor_of(path, folder) is None:
        yield 0, "a source of %s outside its folders" % folder.rstrip("/")
    code = c_source.strip_comments(text)
    bare = c_source.strip_comments_and_strings(text)
    for match in INCLUDE.finditer(code):
        for rule in check_include(path, folder, match.group(1) or match.group(2), match.group(1) is not None):
            yield match.start(), rule
    if not HEADERS[-1][2].search(path):
        for match in BUILTIN.finditer(bare):
            yield match.start(), "%s: %s" % (match.group(), HEADERS[-1][3])
    if PRINTS.search(path):
        for match in PRINT.finditer(bare):
            called = match.group().rstrip(" \t\n(")
            yield match.start(), "%s: ampctl prints with ampctl_print (client/ampctl/print.h)" % called
    if OUTSIDE_WORLD.search(path):
        return
    for pattern, in_strings, rule in CALLS:
        for match in pattern.finditer(code if in_strings else bare):
            yield match.start(), "%s: %s" % (match.group().rstrip(" \t\n("), rule)


def check_options(text):
    for match in FT_POINTER.finditer(re.sub(r"(#|//)[^\n]*", lambda m: " " * len(m.group()), text)):
        yield match.start(), "FT_POINTER: a peer would choose the size of an allocation"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    files = [path for path in c_source.list_files(root) if SOURCE.search(path) or path.endswith(".options")]
    count = 0
    for folder, rule in check_sizes(files):
        print("%s: %s" % (folder, rule))
        count += 1
    for path in files:
        text = c_source.read(root, path)
        found = check_options(text) if path.endswith(".options") else check_source(path, text)
        for position, rule in sorted(found):
            print("%s:%d: %s" % (path, c_source.line_of(text, position), rule))
            count += 1
    print("fences: %d files, %d violations" % (len(files), count))
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
