# SPDX-License-Identifier: Apache-2.0
"""What benchmarks measured of us and of others, as lines that can stand beside one another, read from the benchmarks'
JSON. All figures are such that less is better."""

import dataclasses
import re
import statistics
from dataclasses import dataclass, field

from . import words
from .mpi import HEAP, MEMORY, MPIS
from .report import MIB, size_text
from .words import OURS


@dataclass
class Spread:
    median: float
    low: float
    high: float


def spread(values):
    return Spread(statistics.median(values), min(values), max(values)) if values else None


@dataclass
class Figure:
    """One thing that was measured of ours and of others. `unit` is s, B, or '' for a plain number. The best of the others
    is to take at least `wanted` times what ours takes. A bound is no other product, but tells what the machine can do;
    ours is to take at most `within` times the first one. `short`: the figure stands in the short plot, too."""

    part: str
    what: str
    unit: str
    ours: Spread
    peers: dict
    wanted: float = 1.0
    bounds: dict = field(default_factory=dict)
    within: float = None
    short: bool = False

    @property
    def best(self):
        """The name of the best of the others; None: there is none."""
        return min(self.peers, key=lambda name: self.peers[name].median) if self.peers else None

    def ratio(self, name):
        """How many times ours it takes, and the range that the two ranges leave."""
        other = self.peers[name]
        return (other.median / self.ours.median, other.low / self.ours.high, other.high / self.ours.low)

    @property
    def ahead(self):
        """True, False; None: nothing to compare with."""
        return round(self.ratio(self.best)[0], 2) >= self.wanted if self.peers else None

    def over_bound(self):
        """The first bound's name, and how many times that ours takes."""
        name, bound = next(iter(self.bounds.items()))
        return name, (self.ours.median / bound.median, self.ours.low / bound.high, self.ours.high / bound.low)

    @property
    def beyond(self):
        """Ours takes more of the bound than it is to."""
        return bool(self.within and self.bounds) and self.over_bound()[1][0] > self.within


def as_entry(figure):
    return dataclasses.asdict(figure)


def from_entry(entry):
    of = {name: {other: Spread(**value) for other, value in entry[name].items()} for name in ("peers", "bounds")}
    return Figure(**{**entry, **of, "ours": Spread(**entry["ours"])})


def whole(document):
    """For a figure that has no range."""
    return Spread(document, document, document)


# ---- what each benchmark's file says ------------------------------------------------------


# On a node the memory decides: the line's text, our contender, and whether memory that an MPI's ranks share counts beside it.
MEMORIES = (("", "ddp", True), (", own memory", "ddp-user", False))
MACHINE = ("plain", "memcpy", "wire")


def of_allreduce(document):
    """Medians and quartiles by place, size, and whether buffers are rewritten."""
    places = {}
    for point in document["points"]:
        at = places.setdefault((point["place"], point["nodes"], point["bytes"], point["rewritten"]), {})
        seconds = point["seconds"]
        at[point["contender"]] = Spread(seconds["median"], seconds["p25"], seconds["p75"])
    for (place, nodes, size, rewritten), of in places.items():
        bounds = {name: of[name] for name in MACHINE if name in of}
        for text, ours, any_memory in MEMORIES if nodes == 1 else MEMORIES[:1]:
            if ours in of:
                what = f"{size_text(size)}, {place_text(place)}{text}{', rewritten' if rewritten else ''}"
                yield Figure("all_reduce", what, "s", of[ours], best_settings(of, any_memory), bounds=bounds,
                             short=size in (1024, 25 * MIB) and ("2 ranks" in place or "2 nodes x 1" in place))


def best_settings(of, any_memory):
    """The peers, of which each MPI has its best setting."""
    peers = {}
    for name, value in of.items():
        family, _, setting = name.partition(":")
        if not name.startswith("ddp") and name not in MACHINE and (any_memory or setting not in (MEMORY, HEAP)) and (
                family not in peers or value.median < peers[family].median):
            peers[family] = value
    return peers


def rate_text(rate):
    return re.sub(r"^([\d.]+)([kmg]?)bit$", lambda found: f"{found[1]} {found[2].upper()}bit/s", rate)


def place_text(place):
    layout, _, links = place.partition(", links of ")
    found = re.fullmatch(r"(\d+) nodes x (\d+)(.*)", layout)
    if not found:
        return place
    ranks = f"{found[2]} ranks" if found[2] != "1" else "a rank"
    return f"{found[1]} nodes of {ranks}{found[3]}{f', {rate_text(links)}' if links else ''}"


LAUNCHES = (  # ours, the others, what, how many times ours the best of the others is to take
    ("ours", tuple(MPIS), "a program in C, 2 nodes of 2 ranks", 1),
    ("srun --ddp python", ("srun python", "torchrun"), "a PyTorch script over gloo, 2 nodes of 2 ranks", 0.95),
)


def left_out(document):
    """What a benchmark's file says that it could not measure, a sentence each."""
    found = [entry if isinstance(entry, str) else f"{place_text(entry['place'])}: {entry['reason']}"
             for entry in document.get("left_out", [])]
    rows = [row for row in document.get("results", []) if "failure" in row]
    for way, failure in dict.fromkeys((row["way"], row["failure"]) for row in rows):
        mine = [row for row in rows if (row["way"], row["failure"]) == (way, failure)]
        missed = sum(row["seconds"] is None for row in mine)
        if missed:
            found.append(f"{words.label(way)}, {FAILURES.get(failure, failure)}: no step followed within {document['limit']:.0f} s "
                         f"in {missed} of {len(mine)} rounds")
    return found


def of_startup(document):
    seconds = {name: spread(values) for name, values in document["seconds"].items()}
    bounds = {"srun true": seconds["srun true"]} if "srun true" in seconds else {}
    for ours, others, what, wanted in LAUNCHES:
        peers = {name: seconds[name] for name in others if name in seconds}
        if ours in seconds:
            yield Figure("launch", what, "s", seconds[ours], peers, wanted, bounds, short=True)


def of_wireup(document):
    for entry in document["entries"]:
        peers = {name: Spread(*values) for name, values in entry["peers"].items()}
        memory = entry["unit"] == "B"
        yield Figure("memory" if memory else "wire-up", f"{'wire-up of ' if memory else ''}{entry['ranks']} ranks of a node",
                     entry["unit"], Spread(*entry["ours"]), peers,
                     short=entry["ranks"] == max(other["ranks"] for other in document["entries"]) and not memory)


def of_spank_cost(document):
    """Ours is a step that does nothing; the other has no plugin."""
    low, high = document["median_ratio_range"]
    plain = document["srun_ms"] * 1e-3
    yield Figure("launch", "a program that ends at once, 2 nodes of 2 tasks", "s",
                 Spread(plain * document["median_ratio"], plain * low, plain * high), {},
                 bounds={"srun without --ddp": whole(plain)}, within=1.15)


def of_ddp_overhead(document):
    steps, torch, ranks = document["steps"], document["torch"], document["ranks"]
    if document["nodes"] > 1:
        return
    slowest = {mode: [step["slowest"] for step in steps[mode]] for mode in steps}
    peers = {way: spread([seconds for turn in turns for seconds in turn[1]]) for way, turns in torch.items()}
    model = gpt_text(document["sizes"])
    yield Figure("data parallelism", f"step of a GPT on {ranks} ranks of a node ({model})", "s", spread(slowest["default"]), peers,
                 bounds={"no communication": spread(slowest["silent"])}, within=1.05, short=True)
    # By rounds: a machine that slows down during the run does so in both.
    peers = {way: spread([statistics.median(several) / statistics.median(one) for one, several in turns])
             for way, turns in torch.items()}
    yield Figure("data parallelism", "the same, over one rank's step", "", over_single(steps, "default"), peers,
                 bounds={"no communication": over_single(steps, "silent")})
    memory = document.get("memory")
    if memory:
        yield Figure("memory", f"training step of that GPT on {ranks} ranks of a node", "B", whole(memory[OURS]),
                     {name: whole(value) for name, value in memory.items() if name != OURS}, short=True)


def gpt_text(sizes):
    millions = (12 * sizes["layers"] * sizes["width"] ** 2 + sizes["width"] * (sizes["vocab"] + sizes["length"])) / 1e6
    return f"{millions:.0f}M"


def over_single(steps, mode):
    """The slowest rank's step over one rank's, in the same round."""
    return spread([several["slowest"] / one["mean"] for several, one in zip(steps[mode], steps["single"])])


def of_gpt_step(document):
    for result in document["results"]:
        peers = {way: spread(seconds) for way, seconds in result["torch"].items() if seconds}
        rates = {name: result[key] for name, key in (("library products", "library"), ("products", "sgemm")) if result.get(key)}
        bounds = {name: spread([document["flops"] / (rate * 1e9) for rate in of]) for name, of in rates.items()}
        threads = f"{result['threads']} thread{'s' if result['threads'] > 1 else ''}"
        yield Figure("training step", f"GPT of {gpt_text(document['sizes'])}, {document['dtype']}, {threads}", "s",
                     spread(result["gpt"]), peers, 1.3 if document["dtype"] == "f32" else 1.0, bounds,
                     1 / 0.95 if "library products" in bounds else None, short=result["threads"] == 1)


FORMATS = {"contiguous": "PyTorch contiguous", "channels_last": "PyTorch channels last", "compiled": "PyTorch compiled"}


def of_vision_step(document):
    for result in document["results"]:
        if "threads" in result:
            peers = {FORMATS[form]: spread(result[form]) for form in FORMATS if form in result}
            threads = f"{result['threads']} thread{'s' if result['threads'] > 1 else ''}"
            yield Figure("training step", f"{result['model']}, {document['batch']} images, {threads}", "s", spread(result[OURS]),
                         peers, 1.15, short=result["threads"] == 1)


def of_overlap(document):
    def ratios(rounds):
        return [modes["overlapped"]["step_seconds"] / max(modes["compute_only"]["step_seconds"], modes["serial"]["tail_seconds"]
                                                         - modes["compute_only"]["tail_seconds"]) for modes in rounds]

    peers = {"pytorch": spread(ratios(document["torch"]))} if document["torch"] else {}
    yield Figure("overlap", f"a step on 2 nodes, {rate_text(document['rate'])}", "", spread(ratios(document["rounds"])), peers,
                 bounds={"longer": whole(1)}, within=1.05, short=True)


LEAST_ADDED = 0.01  # seconds; steps differ by more than that by themselves


def seconds_added(run):
    """What a checkpoint adds to the steps of a run, on the average. The steps after a checkpoint may be slower while a thread
    writes it, so only those count as plain that come before the first checkpoint or right before another one."""
    plain = [seconds for i, seconds in enumerate(run["steps"]) if i < run["saves"][0] or i + 1 in run["saves"]]
    return (sum(run["steps"]) - len(run["steps"]) * statistics.median(plain)) / len(run["saves"])


def of_checkpoint_step(document):
    """torch.save() leaves the file to the kernel, and returns before the disk has it, as those do that write beside the steps."""
    added = {way: spread([max(seconds_added(run), LEAST_ADDED) for run in result["runs"]])
             for way, result in document["ways"].items()}
    threads = document["threads"]
    of = f"{gpt_text(document['sizes'])}, {threads} thread{'s' if threads > 1 else ''}"
    yield Figure("checkpoints", f"a checkpoint of a GPT of {of}, beside the steps", "s", added["beside"],
                 {other: added[other] for other in ("async_save", "torch.save") if other in added}, short=True)


# By what the benchmark calls them: a peer, and what it is measured with.
STORED = {"save": {"save": "torch.save", "synced": "torch.save, synced", "dcp": "DCP"},
          "load": {"save": "torch.load", "mapped": "torch.load, mapped", "dcp": "DCP"}}


def of_storage(document):
    """Of loaders the best number of helpers counts, of ours as of the other's."""
    batch, model = document["batch"], f"a checkpoint of {document['millions']}M parameters"
    for cell, found in document["cells"].items():
        found = {name: spread(seconds) for name, seconds in found.items()}
        if cell in STORED:
            peers = {peer: found[way] for way, peer in STORED[cell].items() if way in found}
            text = f"{model}, saved at once" if cell == "save" else f"{model}, loaded"
            yield Figure("checkpoints", text, "s", found["ours"], peers, short=True)
        else:
            best = {who: min((value for name, value in found.items() if name.startswith(who)), key=lambda value: value.median,
                             default=None) for who in ("ours", "DataLoader")}
            what = f"{batch} samples of {document['length']} tokens" if cell == "tokens" else f"{batch} images of 3 x 32 x 32"
            yield Figure("loader", what, "s", best["ours"], {"DataLoader": best["DataLoader"]} if best["DataLoader"] else {}, short=True)


FAILURES = {"kill": "a rank is killed", "power": "a node loses its power"}


def of_recovery(document):
    for failure in dict.fromkeys(row["failure"] for row in document["results"]):
        rest = {}
        for row in document["results"]:
            if row["failure"] == failure and row["seconds"] is not None:
                rest.setdefault(row["way"], []).append(row["seconds"] - row["start"])
        ours = rest.get("srun pytorch")
        if ours:
            peers = {way: spread(values) for way, values in rest.items() if way.startswith("torchrun")}
            yield Figure("recovery", FAILURES.get(failure, failure), "s", spread(ours), peers, short=True)


BACKEND = "PyTorch's backend `ddp`"


def of_backend(document):
    """The c10d backend beside gloo, in the same program."""
    for run in document["runs"]:
        place, here = run["place"], run["nodes"] == 1
        for size, forms in run["calls"]:
            forms = {form: Spread(*(value * 1e-6 for value in values)) for form, values in forms.items()}
            floor = {"floor": forms["floor"]} if "floor" in forms else {}
            if here:
                yield Figure(BACKEND, f"all_reduce {size}, {place}, shared", "s", forms["ddp, shared memory"], {"gloo": forms["gloo"]},
                             bounds=floor, short=size in ("1 KiB", "25 MiB"))
            yield Figure(BACKEND, f"all_reduce {size}, {place}", "s", forms["ddp"], {"gloo": forms["gloo"]}, bounds=floor)
        for model, times in run["steps"].items():
            times = {name: Spread(*(value * 1e-3 for value in values)) for name, values in times.items()}
            yield Figure(BACKEND, f"DDP step of {model}, {place}", "s", times["ddp"], {"gloo": times["gloo"]},
                         bounds={"no communication": times["one rank"]}, within=1.05, short=True)
