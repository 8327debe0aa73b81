#!/usr/bin/python3
"""pairs.py BIN [NAME]: measures each row side by side with its peer and prints it, tab-separated:

    name  ours  peer  ratio  goal  ok|short

The columns and the groups of rows are explained in bench/run.sh. A pair is one round of each side; ours and peer are
medians over the pairs, and ratio is the median of the pairs' ratios. A row is `ok` if that median reaches the goal. The
confidence interval and the CPU time are printed on stderr. BIN is the directory of the programs. NAME selects the rows
whose names contain it; the rows for calibration (noise_) and the long ones are measured only with a NAME. The exit code
says whether everything could be measured, not how good it is. Rows that a program measures by itself (bench_kernels,
bench_grad, bench_guard, bench_store) are started here, too, and these programs print them. With AMPD_PAIRS=60 in the
environment the rows that pairs.py itself measures have 60 pairs instead of 16, and a narrower confidence interval.

A side is a server program on the first core and a client program on the second. For each line on its stdin the client
moves the bytes once and prints the seconds that this took. So both sides run at the same time and take turns, A B A B,
and a change of the machine's speed affects both; then both are started again in the other order.
"""
import functools
import os
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
import charlm_rows  # noqa: E402
import checkpoint_rows  # noqa: E402
import cluster_rows  # noqa: E402
import host_checkpoint_rows  # noqa: E402
import host_rows  # noqa: E402
import memory_row  # noqa: E402
import page_rows  # noqa: E402
import python_rows  # noqa: E402
import rpc_rows  # noqa: E402
import tail_rows  # noqa: E402
from sides import MIB, START_S, Failed, Kernels, Pump, Skipped  # noqa: E402
from sides import bounded_goal, in_turns, interval, reaches_bound  # noqa: E402

PAIRS = int(os.environ.get("AMPD_PAIRS", "16"))
PAIRS += PAIRS % 2  # as many from each order of starts
WARM_UPS = 3


class Torch(Kernels):
    """The work of Kernels by PyTorch (torch_adamw.py), with the same number of threads."""

    def command(self):
        return ["/usr/bin/python3", os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_adamw.py")]


# Vote and apply of one worker: 30 bytes an element, and together more than 2 GB of arrays.
STEP_ELEMENTS = 128 * MIB
STEP_BYTES = 30 * STEP_ELEMENTS

# name, (ours, its arguments), (peers, each with its arguments), goal, whether it is measured only with a NAME; and for
# a row with a bound a pair: the side of the bound, which has less to do than ours, and its peer (None: the row's peer)
ROWS = (
    *rpc_rows.PAIRS,
    *cluster_rows.PAIRS,
    *charlm_rows.PAIRS,
    *python_rows.PAIRS_ROWS,
    ("kernels_torch_1t", (Kernels, STEP_BYTES, STEP_ELEMENTS, 1), ((Torch, STEP_BYTES, STEP_ELEMENTS, 1),), 5.0, False),
    ("kernels_torch_2t", (Kernels, STEP_BYTES, STEP_ELEMENTS, 2), ((Torch, STEP_BYTES, STEP_ELEMENTS, 2),), 10, False,
     ((Kernels, STEP_BYTES, STEP_ELEMENTS, 2, "bound"), None)),
    # The peer beside itself: how far from 1 a ratio can be by the noise of this machine alone.
    ("noise_push_64mib", (Pump, 64 * MIB, "push"), ((Pump, 64 * MIB, "push"),), 0.95, True),
    ("noise_pull_64mib", (Pump, 64 * MIB, "pull"), ((Pump, 64 * MIB, "pull"),), 0.95, True),
)


def measure(programs, name, ours, peers, goal, bound=()):
    """Measures and prints a row; with several peers the row is beside the best one."""
    others = [side for side in bound if side is not None]
    makers = [functools.partial(side[0], programs, *side[1:]) for side in (ours, *peers, *others)]
    rounds, cpu, sides = in_turns(makers, PAIRS, WARM_UPS)
    a = sides[0]
    medians = [statistics.median(values) for values in zip(*rounds)][:1 + len(peers)]
    best = min if a.limits else max
    peer = 1 + medians[1:].index(best(medians[1:]))
    ratios = [values[0] / values[peer] for values in rounds]
    reaches = False
    if bound:
        first, second = 1 + len(peers), peer if bound[1] is None else 2 + len(peers)
        goal = bounded_goal(name, goal, [values[first] / values[second] for values in rounds], a.limits)
        reaches = bound[1] is None and reaches_bound(name, [values[0] / values[first] for values in rounds], a.limits)
    ratio = statistics.median(ratios)
    good = reaches or goal is None or (ratio <= goal if a.limits else ratio >= goal)
    verdict = "info" if goal is None else "ok" if good else "short"
    shown = "%.0f" if a.limits else "%.2f"
    print("\t".join((name, shown % medians[0], shown % medians[peer], "%.2f" % ratio,
                     "-" if goal is None else "%.2f" % goal, verdict)), flush=True)
    unit = a.unit
    cpu = [spent / (PAIRS * side.amount) for spent, side in zip(cpu, sides)]
    print("# %s: %d pairs, ratio %.2f to %.2f, 95 %% of its median %.2f to %.2f; CPU s/%s ours %.3f, peer %.3f" % (
        (name, PAIRS, min(ratios), max(ratios)) + interval(ratios) + (unit, cpu[0], cpu[peer])), file=sys.stderr)
    if len(peers) > 1:
        print("# %s: peers %s" % (name, ", ".join("%s %s" % (side.name(), shown % median)
                                                   for side, median in zip(sides[1:], medians[1:]))), file=sys.stderr)


def own_rows(programs):
    """The rows of the numerics that programs measure by themselves: (name, command, added environment)."""
    programs = os.path.abspath(programs)
    kernels = os.path.join(programs, "bench_kernels")
    try:
        names = subprocess.run([kernels, "--list"], stdout=subprocess.PIPE, check=True, timeout=START_S).stdout
    except OSError as problem:
        raise Failed("%s; build it first" % problem) from problem
    for name in names.decode().split():
        yield name, [kernels, name], {}
    guard = [os.path.join(programs, "bench_grad"), "examples/digits/digits.csv"]
    yield "kernels_guard_share", guard, {}
    yield "kernels_guard_blas_share", [os.path.join(programs, "bench_guard")], {}
    yield "kernels_guard_share_ref", guard, {"AMPD_ISA": "ref"}


def store_rows(programs):
    """The rows that bench_store measures by itself, as own_rows gives them."""
    store = os.path.join(os.path.abspath(programs), "bench_store")
    names = subprocess.run([store, "--list"], stdout=subprocess.PIPE, check=True, timeout=START_S).stdout
    for name in names.decode().split():
        yield name, [store, name], {}


def run_own(name, command, environment):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        done = subprocess.run(command, cwd=root, env=dict(os.environ, **environment), timeout=START_S, check=False)
    except subprocess.TimeoutExpired as problem:
        raise Failed("it took more than %d s" % START_S) from problem
    if done.returncode != 0:
        raise Failed("%s ended with %d" % (" ".join(command), done.returncode))


def main():
    if not 2 <= len(sys.argv) <= 3:
        print("usage: pairs.py BIN [NAME]", file=sys.stderr)
        return 2
    programs, wanted = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else ""
    try:
        rows = [(name, not calibrates, measure, (programs, name, ours, peers, goal, *bound))
                for name, ours, peers, goal, calibrates, *bound in ROWS]
        rows += [(name, True, run, (programs, name)) for name, run in rpc_rows.MEMORY]
        trained = (checkpoint_rows.ROWS + memory_row.ROWS + cluster_rows.ROWS + charlm_rows.ROWS + python_rows.ROWS +
                   host_rows.ROWS + host_checkpoint_rows.ROWS + page_rows.ROWS + tail_rows.ROWS)
        rows += [(name, False, run, (programs, name)) for name, run in trained]
        rows += [(own[0], True, run_own, own) for own in own_rows(programs)]
        rows += [(own[0], False, run_own, own) for own in store_rows(programs)]
    except Failed as problem:
        print("bench: %s" % problem, file=sys.stderr)
        return 1
    chosen = [row for row in rows if wanted in row[0] and (wanted or row[1])]
    if not chosen:
        print("bench: no row has \"%s\" in its name; there are: %s" % (wanted, ", ".join(row[0] for row in rows)),
              file=sys.stderr)
        return 2
    failed = 0
    for name, _, run, arguments in chosen:
        try:
            run(*arguments)
        except Skipped as reason:
            print("%s\t-\t-\t-\t-\tskipped: %s" % (name, reason), flush=True)
        except Failed as problem:
            print("bench: %s could not be measured: %s" % (name, problem), file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
