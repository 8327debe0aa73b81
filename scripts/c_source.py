"""What the source checks share: which files there are, and C text without what is not code."""
import os
import re
import subprocess

_TOKEN = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    re.DOTALL,
)


def list_files(root):
    """Paths, relative to root, of the files that git tracks or would track; of all files where root is no work tree."""
    if os.path.exists(os.path.join(root, ".git")):
        out = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, stdout=subprocess.PIPE).stdout
        names = out.decode().split("\0")
    else:
        names = [os.path.relpath(os.path.join(folder, name), root)
                 for folder, _, files in os.walk(root) for name in files]
    # A file may be tracked and deleted at once.
    return sorted(name for name in set(names) if name and os.path.isfile(os.path.join(root, name)))


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def _blank(text):
    """The same number of characters and lines, so that positions stay true."""
    return re.sub(r"[^\n]", " ", text)


def strip_comments(text):
    return _TOKEN.sub(lambda m: m.group() if m.group("string") else _blank(m.group()), text)


def strip_comments_and_strings(text):
    """Quotes stay, what stands between them goes; #include names in quotes go too."""
    return _TOKEN.sub(
        lambda m: m.group()[0] + _blank(m.group()[1:-1]) + m.group()[-1] if m.group("string")
        else _blank(m.group()), text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def call_of(*names):
    """A pattern for a call of one of these functions: not a member, not the tail of a longer name."""
    return re.compile(r"(?<![\w.])(?<!->)(?:%s)\s*\(" % "|".join(names))
