"""Listings of compiled code: SASS as a list of instructions, and two listings side by side."""

import difflib
import html
import re
from typing import NamedTuple

_PRINTED = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*(?:\s[&?].*)?;")
_BRANCH = re.compile(r"((?:@\S+ +)?(?:BRA|CALL|BSSY|JMP|WARPSYNC)\b.*?)(0x[0-9a-f]+)$")


# Instructions by what they are for; one that starts with U and is none of these is the uniform
# datapath's, one that is in no line is integer arithmetic, comparison or selection.
CLASSES = {
    "global": "LDG STG LD ST ATOM ATOMG RED LDGSTS",
    "local": "LDL STL",
    "exchange": "LDS STS LDSM STSM ATOMS SHFL REDUX CREDUX VOTE MATCH BAR WARPSYNC MEMBAR FENCE",
    "control": "BRA EXIT CALL RET BSSY BSYNC BREAK BMOV BRX JMP NOP",
    "move": "MOV CS2R S2R S2UR R2UR LDC LDCU ULDC UMOV",
    "reciprocal": "I2F I2FP MUFU F2I",
}
_CLASS = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes.split()}
_WIDTH = re.compile(r"\.[US]?(8|16|64|128|256)\b")


class Instruction(NamedTuple):
    """One SASS instruction: guard such as `@!P0` or nothing, opcode with its suffixes, operands.

    `label` is the one in front of it, if any.
    """

    label: str
    guard: str
    opcode: str
    operands: str


def sass(printed: str, start: int, end: int) -> str:
    """The disassembler's text between two addresses: labels for addresses, no codes, no padding."""
    code = {
        int(address, 16): text
        for address, text in _PRINTED.findall(printed)
        if start <= int(address, 16) < end
    }
    # A kernel is padded with NOPs, which a branch to itself guards.
    addresses = list(code)
    while addresses and code[addresses[-1]] == "NOP":
        del code[addresses.pop()]
    if addresses and code[addresses[-1]] == f"BRA {addresses[-1]:#x}":
        del code[addresses.pop()]
    jumps = {address: _BRANCH.match(text) for address, text in code.items()}
    targets = sorted({int(jump[2], 16) for jump in jumps.values() if jump})
    labels = {target: f"L{number}" for number, target in enumerate(targets, 1)}
    lines = []
    for address, text in code.items():
        if address in labels:
            lines.append(f"{labels[address]}:")
        jump = jumps[address]
        lines.append("    " + (jump[1] + labels[int(jump[2], 16)] if jump else text))
    return "\n".join(lines) + "\n"


def instructions(text: str) -> list[Instruction]:
    """The instructions of a listing that `sass` made."""
    found, label = [], ""
    for line in text.splitlines():
        if not line.startswith(" "):
            label = line.rstrip(":")
            continue
        guard, opcode, operands = re.match(r"\s+(@\S+)?\s*(\S+)\s*(.*)", line).groups("")
        found.append(Instruction(label, guard, opcode, operands))
        label = ""
    return found


def classify(instruction: Instruction) -> str:
    """The class of an instruction, as `codegen.report` counts it."""
    opcode, operands = instruction.opcode.split(".")[0], instruction.operands
    if opcode in _CLASS:
        return _CLASS[opcode]
    if opcode.startswith("U"):
        return "uniform"
    # Multiply-adds that multiply by zero carry a value into a register.
    if re.search(r", -?RZ, RZ, [^-]", operands) and opcode in ("IMAD", "HFMA2"):
        return "move"
    return "arithmetic"


def bits(instruction: Instruction) -> int:
    """What a load or store moves for one thread."""
    width = _WIDTH.search(instruction.opcode)
    return int(width[1]) if width else 32


def loops(code: list[Instruction]) -> int:
    """How many places code comes back to: targets of branches that lead there again.

    A branch backwards alone is no loop: it may return from a block placed after the end.
    """
    places = {instruction.label: at for at, instruction in enumerate(code) if instruction.label}
    following = []
    for at, (_, guard, opcode, operands) in enumerate(code):
        name, target = opcode.split(".")[0], operands.split(" ")[-1]
        jump = name == "BRA"
        ends = name in ("EXIT", "RET") or (jump and operands == target)
        following.append(
            ([places[target]] if jump else []) + ([at + 1] if guard or not ends else [])
        )

    def reaches(start, goal):
        seen, left = set(), [start]
        while left:
            at = left.pop()
            if at == goal:
                return True
            if at not in seen and at < len(code):
                seen.add(at)
                left += following[at]
        return False

    return len(
        {
            target
            for at, after in enumerate(following)
            for target in after
            if target <= at and reaches(target, at)
        }
    )


class Diff(NamedTuple):
    """Two listings side by side; a page shows it in colour, `str` as text.

    `rows` are (sign, left, right): "" alike, "-" only left, "+" only right, "~" both, different.
    """

    names: tuple[str, str]
    rows: list[tuple[str, str, str]]

    def _collapsed(self, context=2):
        """The rows, long runs of equal ones cut down to a row that counts them."""
        near = {
            other
            for at, row in enumerate(self.rows)
            if row[0]
            for other in range(at - context, at + context + 1)
        }
        skipped = 0
        for at, row in enumerate(self.rows):
            if at in near:
                if skipped:
                    yield "…", f"({skipped} lines alike)", ""
                skipped = 0
                yield row
            else:
                skipped += 1
        if skipped:
            yield "…", f"({skipped} lines alike)", ""

    def __str__(self):
        rows = [("", *self.names), *self._collapsed()]
        width = max(len(left) for _, left, _ in rows)
        return "\n".join(
            f"{sign:1} {left:{width}} | {right}".rstrip() for sign, left, right in rows
        )

    __repr__ = __str__

    def _repr_html_(self):
        tint = {"-": "213,94,0", "+": "0,114,178", "~": "204,121,167"}
        cell = "padding:0 0.7em;text-align:left;white-space:pre;border:0"
        lines = []
        for sign, left, right in self._collapsed():
            shade = f' style="background:rgba({tint[sign]},0.22)"' if sign in tint else ""
            sides = "".join(f'<td style="{cell}">{html.escape(t)}</td>' for t in (left, right))
            mark = sign.replace("-", "\N{MINUS SIGN}")
            lines.append(f'<tr{shade}><td style="{cell};font-weight:bold">{mark}</td>{sides}</tr>')
        heads = "".join(
            f'<th style="{cell}">{html.escape(name)}</th>' for name in ("", *self.names)
        )
        return (
            '<div style="overflow:auto;max-height:32em"><table style="font-family:monospace;'
            'font-size:85%;line-height:1.35;border-collapse:collapse;margin:0">'
            f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        )


def side_by_side(stage: str, left: str, right: str, names: tuple[str, str]) -> Diff:
    """Compare two texts of a stage by what they do.

    Register numbers, labels, addresses of parameters and source locations count as alike, since
    one change renumbers them all; the lines are shown as they are.
    """
    a, b = _essential(stage, left), _essential(stage, right)
    bare_a, bare_b = [_bare(stage, line) for line in a], [_bare(stage, line) for line in b]
    rows = []
    for alike, i, j in _aligned(bare_a, bare_b):
        if alike:
            rows += [("", a[x], b[y]) for x, y in zip(i, j, strict=True)]
            continue
        # Inside a stretch that differs, the same operation on both sides makes one row.
        operations = [[_operation(bare[x]) for x in at] for bare, at in ((bare_a, i), (bare_b, j))]
        for same, m, n in _aligned(*operations):
            if same:
                rows += [("~", a[i[x]], b[j[y]]) for x, y in zip(m, n, strict=True)]
            else:
                rows += [("-", a[i[x]], "") for x in m] + [("+", "", b[j[y]]) for y in n]
    return Diff(names, rows)


def _aligned(a, b):
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    for kind, a0, a1, b0, b1 in matcher.get_opcodes():
        yield kind == "equal", range(a0, a1), range(b0, b1)


def _operation(bare):
    """What a line does, without what it does it to: opcode, or the operation after `=`."""
    return re.match(r"\s*(?:@\S+ )?(?:\S+ = )?(\S*)", bare)[1]


# For each stage: lines that say nothing about the code, parts of lines that do not, and what is
# renumbered by any change (what the groups match stays).
_HEAD = re.compile(r"^\s*(tt\.func|define) .*$", re.MULTILINE)
_ARGUMENT = re.compile(r"(?<=,) (?=%\w+: |ptr |i\d+ )|(?<=\()(?=%)|(?=\) (?:attributes|local))")
_LOCATION = r" loc\((?:[^()]|\([^()]*\))*\)"
_NOISE = {
    "ttir": r"(#|\s*$)",
    "ttgir": r"(#loc|\s*$)",
    "llir": r"(!|;|attributes|source_filename|target |\s*$)",
    "ptx": r"\s*(//.*|\.(loc|file)\b.*|\$L__(tmp|func)\w*:.*|)$",
    "sass": r"$^",
}
_UNSEEN = {
    "ttir": _LOCATION,
    "ttgir": _LOCATION,
    "llir": r",? !dbg !\d+| #\d+(?=[ ,]|$)",
    "ptx": r"\s*//.*",
    "sass": r"$^",
}
_NUMBERED = {
    "ttir": (r"(%)[\w#]+", r"\1"),
    "ttgir": (r"(%)[\w#]+", r"\1"),
    "llir": (r"(%)[\w.]+|(!)\d+", r"\1\2"),
    "ptx": (r"(%[a-z]+)\d+|(\$L__BB)\w+|(_param_)\d+", r"\1\2\3"),
    "sass": (r"\b(U?[RP])\d+|\bL\d+|c\[0x0\]\[0x[0-9a-f]+\]|\.reuse", r"\1"),
}


def _essential(stage, text):
    """The lines that say something, without what is in no instruction."""
    if stage == "ptx":
        text = text[text.index(".visible .entry") :].split("\n\t.file", 1)[0]
    # A function's arguments in a line each: what is folded is gone from them.
    text = re.sub(_HEAD, lambda head: re.sub(_ARGUMENT, "\n        ", head[0]), text)
    lines = (line for line in text.splitlines() if not re.match(_NOISE[stage], line))
    return [re.sub(_UNSEEN[stage], "", line).expandtabs(4).rstrip() for line in lines]


def _bare(stage, line):
    return re.sub(r"\s+", " ", re.sub(*_NUMBERED[stage], line)).rstrip(",")
