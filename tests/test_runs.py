import json

import pandas as pd
import pytest
import torch
from helpers import short, train

from cirl import metrics
from cirl.data.batches import loaders
from cirl.errors import UserError
from cirl.methods import build
from cirl.methods.table import METHOD_NAMES
from cirl.run import checkpoint, files, provenance


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_a_run_resumed_after_every_epoch_equals_an_uninterrupted_one_bit_for_bit(method, folder, monkeypatch):
    """Of a method with two phases, also in the middle of both."""
    run, states, finish = short(folder, method, epochs=4), [], checkpoint.finish

    def kept(run, *rest):
        """Keep the state of the last epoch, which `finish` removes."""
        states.append(checkpoint.last_good_state(run))
        return finish(run, *rest)

    monkeypatch.setattr(checkpoint, "finish", kept)
    whole = train(run)
    epochs = len(states[0]["history"])
    weights = torch.load(checkpoint.folder(run) / "model.pt", weights_only=True)
    history = (checkpoint.folder(run) / "history.csv").read_text()
    checkpoint.folder(run).rename(folder.parent / "whole")
    assert [train(run, stop_after=epoch) for epoch in range(1, epochs)] == [None] * (epochs - 1)
    assert train(run) == whole
    assert (checkpoint.folder(run) / "history.csv").read_text() == history
    again = torch.load(checkpoint.folder(run) / "model.pt", weights_only=True)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)  # modules, optimizers, best weights, history


def test_the_terms_of_many_steps_are_read_at_once_and_averaged(folder, monkeypatch):
    run = short(folder, epochs=1)
    expected = train(run), (checkpoint.folder(run) / "history.csv").read_text()
    checkpoint.folder(run).rename(folder.parent / "first")
    reads, read_terms = [], checkpoint.read_terms
    monkeypatch.setattr(checkpoint, "READ_EVERY", 2)
    monkeypatch.setattr(checkpoint, "read_terms", lambda *given: reads.append(len(given[0])) or read_terms(*given))
    assert (train(run), (checkpoint.folder(run) / "history.csv").read_text()) == expected
    assert reads == [2] * (sum(reads) // 2) + [1] * (sum(reads) % 2) and sum(reads) == loaders(run).steps > 2


def test_a_config_from_before_a_field_existed_still_resumes(folder):
    run = short(folder)
    train(run, stop_after=1)
    file = checkpoint.folder(run) / "config.json"
    config = json.loads(file.read_text())
    del config["precision"], config["compile"]
    file.write_text(json.dumps(config))
    assert train(run)["id"] == run.id


def test_a_finished_run_is_not_touched(folder):
    run = short(folder)
    result = train(run)
    before = {file.name: file.stat().st_mtime_ns for file in checkpoint.folder(run).iterdir()}
    assert set(before) == {"config.json", "history.csv", "model.pt", "metrics.json"}
    assert train(run) == result
    assert {file.name: file.stat().st_mtime_ns for file in checkpoint.folder(run).iterdir()} == before


def test_metrics_are_written_last_and_hold_the_three_rules(folder):
    run = short(folder)
    result = train(run)
    times = {file.name: file.stat().st_mtime_ns for file in checkpoint.folder(run).iterdir()}
    assert max(times, key=times.get) == "metrics.json"
    history = pd.read_csv(checkpoint.folder(run) / "history.csv")
    assert result["last"]["target"] == history["target"].iloc[-1]
    assert result["oracle"]["target"] == history["target"].max()
    assert result["source_val"]["source_val"] == history["source_val"].max()


def test_the_kept_weights_are_those_that_source_validation_chose(folder):
    run = short(folder)
    result = train(run)
    data = loaders(run)
    row = metrics.evaluate(checkpoint.load_model(run, len(data.classes)), data)
    assert row["source_val"] == result["source_val"]["source_val"]
    assert row["target"] == result["source_val"]["target"]


def test_selection_takes_the_latest_of_equals():
    history = [{"epoch": e, "source_val": v, "target": t} for e, v, t in [(0, 9, 5), (1, 9, 8), (2, 7, 8), (3, 6, 1)]]
    assert [checkpoint.select(history, rule)["epoch"] for rule in checkpoint.RULES] == [1, 3, 2]


def test_a_folder_that_holds_another_run_is_refused_and_kept(folder):
    run = short(folder)
    train(run, stop_after=1)
    config = checkpoint.folder(run) / "config.json"
    config.write_text(config.read_text().replace('"tau": 5.0', '"tau": 7.0'))
    before = config.read_text()
    with pytest.raises(UserError, match=r"tau=7\.0 \(asked for: 5\.0\)"):
        train(run)
    assert config.read_text() == before


def test_the_config_says_where_the_run_comes_from(folder):
    run = short(folder)
    train(run, stop_after=0)
    config = json.loads((checkpoint.folder(run) / "config.json").read_text())
    assert config["provenance"]["packages"]["torch"] == torch.__version__.split("+")[0]
    assert config["provenance"]["device"] == "cpu" and len(config["provenance"]["data_digest"]) == 16


def test_an_unfinished_run_of_other_code_restarts_from_epoch_0(folder, monkeypatch):
    run = short(folder)
    whole = train(run)
    checkpoint.folder(run).rename(folder.parent / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "training_digest", lambda run: "older code")
        patch.setattr(provenance, "training_digest", lambda run: "older code")
        train(run, stop_after=2)
    data = loaders(run)
    assert checkpoint.resume(run, build(run, 2), data) == []
    assert train(run) == whole


def test_a_finished_run_of_other_code_is_shown_with_a_warning(folder, monkeypatch):
    run = short(folder)
    whole = train(run)
    monkeypatch.setattr(checkpoint, "training_digest", lambda run: "newer code")
    with pytest.warns(UserWarning, match="was trained by another version of the code; delete the folder"):
        assert train(run) == whole


def test_schedule_augmentation_classes_and_machine_are_in_the_config(folder):
    run = short(folder, schedule="0.50+0.75", augment=False)
    train(run, stop_after=0)
    config = json.loads((checkpoint.folder(run) / "config.json").read_text())
    assert (config["schedule"], config["augment"]) == ("0.5+0.75", False) and config["classes"] == ["cat", "dog"]
    assert "-schedule_0.5+0.75-augment0" in run.id
    assert config["provenance"]["threads"] == 1 and config["provenance"]["capability"] and config["provenance"]["cpu"]


def test_a_checked_file_is_intact_or_not_however_it_is_read(tmp_path):
    file, content = tmp_path / "a.pt", bytes(range(256)) * 10
    files.write_checked(file, content)
    assert files.is_intact(file) and files.read_checked(file) == content
    for damage in (content[:7], file.read_bytes()[:-1], b"", b"\n", file.read_bytes() + b"x"):
        file.write_bytes(damage)
        assert not files.is_intact(file) and files.read_checked(file) is None
    file.unlink()
    assert not files.is_intact(file) and files.read_checked(file) is None


def test_files_are_written_atomically(tmp_path):
    files.write(tmp_path / "a.txt", "first")
    with pytest.raises(TypeError):
        files.write(tmp_path / "a.txt", 5)
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"] and (tmp_path / "a.txt").read_text() == "first"
