"""Tables of figures: appended whole, never mixed, never silently empty."""

import pandas as pd
import pytest

from dsv4kernels.measure import records

ROW = {
    "suite": "tokens",
    "kernel": "combine",
    "variant": "own",
    "preset": "Flash C4A",
    "mix": "one request",
    "requests": 1,
    "tokens": 8,
    "protocol": "graph",
    "cache": "warm",
    "median_us": 2.5,
    "launch_floor_us": 0.5,
    "traffic_floor_us": 2.0,
    "device": "Test GPU",
}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "DATA", tmp_path)
    return tmp_path


def test_changes_are_recomputed_from_the_published_latencies():
    table = records.load_published()
    assert len(table) == 10
    first = table.iloc[0]
    assert first.change == pytest.approx(6.66 / 7.81 - 1)
    assert table.change.between(-0.38, -0.09).all()
    assert set(records.load_published("combine").kernel) == {"combine"}
    assert len(records.load_serving()) == 4


def test_published_devices():
    devices = records.load_devices()
    assert devices.loc["NVIDIA H200", "sm_count"] == 132
    assert set(records.load_published().device) - {"not stated"} <= set(devices.index)


def test_append_and_load(data):
    file = data / "measured" / "test-gpu" / "tokens.csv"
    records.append([ROW, ROW | {"tokens": 16}], file)
    records.append([ROW | {"median_us": 3.5}, ROW | {"tokens": 32, "median_us": ""}], file)
    table = records.load_measured("Test GPU")
    assert list(table.columns) == [*records.COLUMNS, "over_launch", "over_traffic"]
    assert table.over_traffic.tolist() == (table.median_us / 2).tolist()
    # The last measurement counts, and a row without a time is left out.
    assert table.set_index("tokens").median_us.to_dict() == {16: 2.5, 8: 3.5}
    assert records.recorded_devices() == ["Test GPU"]


def test_an_interrupted_append_costs_its_own_line_only(data):
    file = data / "measured" / "test-gpu" / "tokens.csv"
    records.append([ROW], file)
    with open(file, "a") as out:
        out.write("tokens,combine,own,Fla")
    records.append([ROW | {"tokens": 16}], file)
    assert sorted(records.load_measured().tokens) == [8, 16]


@pytest.mark.parametrize("kind", ["measured", "counters"])
def test_a_figure_that_was_cut_short_is_not_read(data, kind):
    file = data / kind / "test-gpu" / "tokens.csv"
    records.append([ROW, ROW | {"tokens": 16, "median_us": 12.75}], file)
    whole = file.read_text()
    file.write_text(whole[: whole.index("12.75") + 2])  # 12 would look like a figure
    assert records.recorded(kind).tokens.tolist() == [8]
    file.write_text("suite,ker")
    assert records.recorded(kind).empty
    records.append([ROW], file)
    assert file.read_text() == whole[: whole.index("\n", whole.index("\n") + 1) + 1]


def test_columns_are_fixed(data):
    file = data / "measured" / "test-gpu" / "tokens.csv"
    with pytest.raises(records.DataError, match=r"unknown columns .*colour"):
        records.append([ROW | {"colour": "red"}], file)
    assert not file.exists()
    file.parent.mkdir(parents=True)
    for text in ("other,header\n1,2\n", "other,hea"):
        file.write_text(text)
        with pytest.raises(records.DataError, match="other columns"):
            records.append([ROW], file)
        assert file.read_text() == text


def test_an_empty_selection_is_an_error(data):
    with pytest.raises(records.DataError, match="nothing measured"):
        records.load_measured()
    assert records.recorded_devices() == []
    table = pd.DataFrame([ROW])
    assert len(records.select(table, tokens=[8, 9], kernel="combine")) == 1
    with pytest.raises(records.DataError, match="tokens = 9; there are: 8"):
        records.select(table, tokens=9)
    with pytest.raises(records.DataError, match="no column 'token'"):
        records.select(table, token=8)


@pytest.mark.parametrize("column", records.SOURCE)
def test_sources_are_not_mixed(column):
    table = pd.DataFrame([ROW, ROW | {column: "another"}])
    with pytest.raises(records.DataError, match=f"must not mix {column}s: .*, another"):
        records.one_source(table)
    source = {"device": "Test GPU", "protocol": "graph", "cache": "warm"}
    assert records.one_source(table[:1]) == source
    with pytest.raises(records.DataError, match="no rows"):
        records.one_source(table[:0])


def test_what_is_recorded_is_whole_and_says_where_from():
    for file in sorted((records.DATA / "measured").glob("*/*.csv")):
        table = pd.read_csv(file)
        assert list(table.columns) == list(records.COLUMNS)
        assert set(table.suite) == {file.stem}
        timed = table[table.median_us.notna()]
        said = ["device", "sm_count", "driver", "torch", "triton", "commit", "date", "checksum"]
        assert timed[said].notna().all(axis=None)
        assert (timed.p20_us <= timed.median_us).all()
        assert (timed.median_us <= timed.p80_us).all()
        assert table[table.median_us.isna()].skipped.notna().all()
