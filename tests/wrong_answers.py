"""Typical wrong answers to the exercises of lesson 07: the solution with an edit, and its hint.

Each is (exercise, what is replaced in its solution, by what, words of the hint).
"""

COUNTED = "tl.sum((valid & (position >= 0)).to(tl.int32))"
VALUE = "value = tl.where(column < window_len, first_row + column, -1)"
ENDS = "tl.sum((is_request & (end <= row)).to(tl.int32))"
NONE_AS_MINUS_1 = "request = tl.where(request < requests, request, -1)"
OWNER = "inside // interleave % ranks"
OFFSET = "inside // (ranks * interleave) * interleave + inside % interleave"
KEYS = "tl.load(keys, mask=in_topk) + M * request"
TAIL = "tl.store(row + column, -1, mask=(column >= length) & (column < width))"
TOPK_LEN = "tl.minimum(seen // compress_ratio, topk)"
REAL = "tl.where(real, tl.maximum(position + 1, 0), 0)"
CHUNK = "tl.store(row + column, index, mask=column < width)"
STALE = "tl.load(token_to_req_indices + token).to(tl.int64)"
UNGUARDED = "\n    valid = valid | True"  # then only the edited line keeps the stale index away
BASE_AND_NONE = (
    "    end -= tl.load(query_start_loc)\n"
    "    request = tl.sum((is_request & (end <= row)).to(tl.int32))\n"
    f"    {NONE_AS_MINUS_1}\n"
)

KERNELS = [
    ("mask", "column < width", "column < TILE", "power of two of lanes"),
    ("mask", "column < width", "column >= 0", "power of two of lanes"),
    ("mask", "column < width", "column <= width", "One column too many"),
    ("mask", "column < width", "column < width - 1", "One column too few"),
    (
        "stale index",
        STALE,
        f"tl.load(token_to_req_indices + token, mask=valid, other=0).to(tl.int64){UNGUARDED}",
        "entries of padding rows are counted",
    ),
    (
        "stale index",
        STALE,
        f"tl.load(token_to_req_indices + token, mask=valid, other=-1).to(tl.int64){UNGUARDED}",
        "-1 is an address too",
    ),
    ("stale index", STALE, f"tl.maximum({STALE}, 0){UNGUARDED}", "another request index"),
    ("stale index", "valid & (position >= 0)", "(position >= 0) and valid", "not lane by lane"),
    (
        "stale index",
        "valid & (position >= 0)",
        "(request >= 0) & (request < 2) & (position >= 0)",
        "only `is_valid_token` tells",
    ),
    (
        "stale index",
        "has_key = valid & (position >= 0)",
        "has_key = (request != 1 << 29) & (position >= 0)",
        "only `is_valid_token` tells",
    ),
    (
        "stale index",
        "mask=has_key, other=0)",
        "mask=position >= 0, other=0)",
        "still read with the stale index",
    ),
    ("stale index", "valid & (position", "(valid == 0) & (position", "The wrong way round"),
    ("count", COUNTED, "tl.sum((position >= 0).to(tl.int32))", "Padding rows are counted"),
    (
        "count",
        COUNTED,
        "tl.sum((valid & (column < width)).to(tl.int32))",
        "the empty ones too",
    ),
    ("count", COUNTED, "tl.where(valid, TILE, 0)", "Every lane of every tile"),
    (
        "count",
        COUNTED,
        "tl.sum((valid & (position > 0)).to(tl.int32))",
        "Position 0 is not counted",
    ),
    ("count", "length += tl", "length = tl", "Only the last tile"),
    ("count", COUNTED, "(valid & (position >= 0)).to(tl.int32)", "`tl.sum` adds up"),
    (
        "count",
        COUNTED,
        "tl.sum(((position >= 0) and valid).to(tl.int32))",
        "not lane by lane",
    ),
    ("count", COUNTED, "tl.sum(valid & (position >= 0))", "with `.to(tl.int32)`"),
    ("count", COUNTED, "tl.sum(tl.where(valid & (position >= 0), position, 0))", "added up"),
    ("tail", "stored = column < width", "stored = column < window_len", "never written"),
    ("tail", VALUE, "value = first_row + column", "runs on to the end"),
    (
        "tail",
        VALUE,
        "value = tl.where(column < window_len, first_row + tl.arange(0, TILE), -1)",
        "begins again at `first_row`",
    ),
    ("tail", "column < window_len, first", "column <= window_len, first", "one column too long"),
    ("tail", "stored = column < width", "stored = column < first + TILE", "reaches past the row"),
    (
        "tail",
        VALUE,
        "tl.store(indices + token * indices_stride + column, -1, mask=column < width)\n"
        f"        {VALUE}",
        "there is no order",
    ),
    ("request", "end <= row", "end < row", "`<` should be `<=`"),
    ("request", NONE_AS_MINUS_1, "", "rows of no request get the number"),
    ("request", "    end -= tl.load(query_start_loc)\n", "", "is not subtracted"),
    ("request", BASE_AND_NONE, f"    request = {ENDS}\n", "Two things are missing"),
    ("request", "(is_request & (end <= row))", "(end <= row)", "Lanes past the last request"),
    ("request", "query_start_loc + 1 + lane", "query_start_loc + lane", "One request too far"),
    (
        "request",
        ENDS,
        "tl.sum((is_request & (end <= row)).to(tl.int32))\n"
        "    start = tl.load(query_start_loc + lane, mask=is_request, other=0)\n"
        "    start -= tl.load(query_start_loc)\n"
        "    latest = tl.max(tl.where(is_request & (start <= row), start, -1))\n"
        "    first = tl.min(tl.where(is_request & (start == latest), lane, TILE))\n"
        "    request = tl.where(request < requests, first, requests)",
        "A request without tokens",
    ),
    ("owner", OWNER, "inside // interleave", "not dealt round"),
    ("owner", OWNER, "inside % ranks", "Single positions are dealt out"),
    ("owner", OWNER, "inside // block_size", "Whole blocks are dealt out"),
    ("owner", OFFSET, OFFSET.replace(" * interleave +", " +"), "A factor is forgotten"),
    ("owner", OFFSET, "inside // (ranks * interleave) * interleave", "inside the piece"),
    ("owner", OFFSET, "inside // ranks", "two positions get one place"),
    ("combine", "origin = tl.load(query_start_loc)", "origin = 0", "subtract its first entry"),
    ("combine", "tl.load(query_start_loc)\n", "0\n", "subtract its first entry"),
    ("combine", REAL, "tl.maximum(position + 1, 0)", "Only rows of no request"),
    ("combine", REAL, "tl.where(real, position + 1, 0)", "Only the warm-up"),
    (
        "combine",
        f"if topk > 0:\n        topk_len = {TOPK_LEN}",
        "topk_len = tl.minimum(seen // tl.maximum(compress_ratio, 1), topk + (topk == 0))",
        "Only the layer without top-k",
    ),
    (
        "combine",
        f"if topk > 0:\n        topk_len = {TOPK_LEN}",
        f"topk_len = {TOPK_LEN}",
        "undefined",
    ),
    ("combine", TAIL, TAIL.replace(" & (column < width)", ""), "wider than the row"),
    (
        "combine",
        "    real = request < requests\n",
        "    starts = tl.load(query_start_loc + lane, mask=is_request, other=0) - origin\n"
        "    latest = tl.max(tl.where(is_request & (starts <= token), starts, -1))\n"
        "    first = tl.min(tl.where(is_request & (starts == latest), lane, REQUESTS))\n"
        "    real = request < requests\n"
        "    request = tl.where(real, first, request)\n",
        "A request without tokens",
    ),
    ("combine", TAIL, "", "The tail is never written"),
    ("combine", "swa_len + 1) - (seq", "swa_len) - (seq", "one row early"),
    ("combine", "position - swa_len + 1", "position - window_size + 1", "in place of `swa_len`"),
    (
        "combine",
        "position = seq_len - (end - start) + (token - start)",
        "position = token - start",
        "add `seq_len - query_len`",
    ),
    ("combine", "swa_len = tl.minimum(seen, window_size)", "swa_len = seen", "the limit of"),
    ("combine", "row + topk_len + column, w", "row + column, w", "stands in the first columns"),
    (
        "combine",
        "row + topk_len + column, window",
        "row + topk_len + column, window + topk_len",
        "count from there",
    ),
    ("combine", " - (seq_len - gather_len)", "", "only its newest `gather_len`"),
    ("combine", "M * request + N + (", "M * request + (", "begin at row `N`"),
    ("combine", KEYS, "tl.load(keys, mask=in_topk)", "The top-k entries miss"),
    ("combine", "window = M * request + N", "window = N", "The window entries miss"),
    ("combine", "seen // compress", "(seen + compress_ratio - 1) // compress", "not up"),
    ("combine", "(seen // compress", "(tl.maximum(seen - 1, 0) // compress", "seen too"),
    (
        "combine",
        TOPK_LEN,
        "seen // compress_ratio",
        "at most `topk`",
    ),
    (
        "combine",
        "swa_len = tl.minimum(seen, window_size)",
        "swa_len = tl.where(seen > 0, window_size, 0)",
        "Early tokens have no full window",
    ),
    (
        "combine",
        "tl.store(row + topk_len + column, window",
        "length = topk + swa_len\n    tl.store(row + column, -1, mask=(column >= topk_len) & "
        "(column < topk))\n    tl.store(row + topk + column, window",
        "without a gap",
    ),
    ("combine", "lens + token, length", "lens + token, topk_len", "one part only"),
    ("combine", "lens + token, length", "lens + token, swa_len", "one part only"),
    ("aligned", CHUNK, "tl.store(row + column, index)", "wider than the row"),
    (
        "aligned",
        CHUNK,
        "tl.store(row + column, index, mask=column < topk_len)\n"
        "    tl.store(row + column, index, mask=(column >= topk_len) & (column < width))",
        "chunks of fixed columns",
    ),
    (
        "aligned",
        CHUNK,
        f"tl.store(row + column, -1, mask=column < width)\n    {CHUNK}",
        "there is no order",
    ),
]

# (argument, class of instructions) told wrong, and words of the hint.
FOLDS = [
    ("block_size", "reciprocal", "needs no reciprocal"),
    ("block_size", "loops", "says nothing about"),
    ("block_size", "loads", "differ from call to call"),
    ("block_size", "exchange", "count over its lanes"),
    ("width", "reciprocal", "still divided"),
    ("width", "loops", "one pass is no loop"),
    ("width", "loads", "differ from call to call"),
    ("width", "exchange", "count over its lanes"),
]

# Changes to the right numbers for 4,100, 1,000, 300 and 32 times 1 row, at most 16 a program, with
# 2,256 slots, and words of the hint.
LAUNCHES = [
    ({"workers": 256}, "Round up: the rows that are left over"),
    ({"workers": 10}, "The average decides nothing"),
    ({"workers": 340}, "counted for each request"),
    ({"workers": 300}, "fewer do"),
    ({"programs": 257}, "The grid is"),
    ({"programs": 803}, "launched all the same"),
    ({"idle": 3563}, "A program may write several rows"),
    ({"idle": 0}, "leaves the others without one"),
    ({"waves": 3}, "Round up: what does not fill"),
    ({"waves": 1}, "take a slot as well"),
]
