"""Kills, damage, concurrent processes, full disks, untrusted files: nothing is lost or silently wrong."""

import ast
import contextlib
import errno
import json
import os
import pickle
import platform
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
import torchvision
from helpers import record, short, train
from PIL import Image

from cirl import metrics, paths
from cirl.data import batches, cache
from cirl.errors import UserError
from cirl.methods.deepall import DeepAll
from cirl.run import checkpoint, files, lock, provenance
from cirl.run.config import Run
from cirl.run.trained import load
from cirl.study import catalog, marks, records

REPORTED = 3  # exit code of a child that ended with a UserError


def child(do):
    """Run a function in a forked process; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        do()
        os._exit(0)
    except UserError:
        os._exit(REPORTED)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def finished(run):
    """The results of a finished run: metrics, history and weights."""
    place = checkpoint.folder(run)
    weights = torch.load(place / "model.pt", weights_only=True)
    return json.loads((place / "metrics.json").read_text()), (place / "history.csv").read_text(), weights


def version(file):
    """Changes when a file is written or replaced."""
    return file.stat().st_ino, file.stat().st_mtime_ns


def assert_same(one, other):
    assert one[:2] == other[:2]
    assert all(torch.equal(one[2][name], other[2][name]) for name in one[2])


@pytest.fixture
def whole(folder):
    """An undisturbed run: the run, its results, and a workspace from which its folder was removed."""
    run = short(folder)
    train(run)
    result = finished(run)
    shutil.rmtree(checkpoint.folder(run))
    return run, result


class TestKills:
    @pytest.mark.slow
    def test_twenty_kills_at_random_moments_change_nothing(self, folder):
        run = short(folder, "cirl", epochs=40, lr=0.001)
        train(run)
        result = finished(run)
        shutil.rmtree(checkpoint.folder(run))
        chance, kills = random.Random(0), 0
        while not checkpoint.is_finished(run):
            pid = child(lambda: train(run))
            if kills < 25:
                time.sleep(chance.uniform(0.02, 0.5))
                os.kill(pid, signal.SIGKILL)
            kills += code(pid) == -signal.SIGKILL
        assert kills >= 20
        assert_same(finished(run), result)
        assert {file.name for file in checkpoint.folder(run).iterdir()} == {
            *("config.json", "history.csv", "model.pt", "metrics.json")
        }

    @pytest.mark.slow
    @pytest.mark.parametrize("call", ["fsync", "replace", "unlink"])
    def test_a_kill_at_every_single_write_changes_nothing(self, call, whole, monkeypatch):
        """Before a file is complete, before its rename, before an old one is removed; model.pt and metrics.json too."""
        run, result = whole
        kills = 0
        for nth in range(1, 100):
            pid = child(lambda nth=nth: self.train_and_die(run, call, nth))
            ended = code(pid)
            train(run)
            assert_same(finished(run), result)
            shutil.rmtree(checkpoint.folder(run))
            if ended == 0:
                break
            assert ended == -signal.SIGKILL
            kills += 1
        assert kills >= {"fsync": 8, "replace": 8, "unlink": 2}[call]

    def train_and_die(self, run, call, nth):
        kept, left = getattr(os, call), [nth]

        def mortal(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return kept(*arguments, **options)

        setattr(os, call, mortal)
        train(run)

    def test_a_kill_in_the_middle_of_the_cache_leaves_none_and_the_next_makes_it(self, folder):
        run = short(folder)

        def die(path, size, upright, kept=cache.decode):
            if path.name == "07.PNG":
                os.kill(os.getpid(), signal.SIGKILL)
            return kept(path, size, upright)

        def make():
            cache.decode = die
            batches.loaders(run)

        assert code(child(make)) == -signal.SIGKILL
        assert not [*paths.CACHE.glob("*.npy")]
        assert len(batches.loaders(run).table.images) == 72
        assert {file.suffix for file in paths.CACHE.iterdir()} == {".npy", ".json"}


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file):
    file.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, cut, empty])
class TestDamage:
    def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(self, damage, whole):
        run, result = whole
        train(run, stop_after=2)
        damage(checkpoint.folder(run) / "last.pt")
        data_, learner = batches.loaders(run), DeepAll(run, 2)
        with pytest.warns(UserWarning, match=r"last\.pt is damaged"):
            assert len(checkpoint.resume(run, learner, data_)) == 1  # the first of two epochs
        train(run)
        assert_same(finished(run), result)

    def test_without_an_intact_checkpoint_the_run_restarts(self, damage, whole):
        run, result = whole
        train(run, stop_after=2)
        for name in checkpoint.STATES:
            damage(checkpoint.folder(run) / name)
        with pytest.warns(UserWarning, match="is damaged") as warned:
            train(run)
        assert len(warned) == 2
        assert_same(finished(run), result)

    def test_damaged_weights_of_a_finished_run_are_refused(self, damage, folder):
        run = short(folder)
        train(run)
        damage(checkpoint.folder(run) / "model.pt")
        with pytest.raises(UserError, match=r"model\.pt is missing or damaged; delete the folder"):
            checkpoint.load_model(run, 2)

    def test_a_damaged_cache_is_reported_and_decoded_again(self, damage, folder):
        run = short(folder)
        expected = np.array(batches.loaders(run).table.images)
        (cache,) = paths.CACHE.glob("*.npy")
        damage(cache)
        with pytest.warns(UserWarning, match=r"is damaged \(wrong checksum\); decoding it again"):
            np.testing.assert_array_equal(batches.loaders(run).table.images, expected)


class TestCheckpoints:
    def fail_next(self, monkeypatch, name):
        """The next write of a file of this name fails like that on a full disk."""

        def full(descriptor, kept=os.fsync):
            if f"/.{name}." in os.readlink(f"/proc/self/fd/{descriptor}"):
                raise OSError(errno.ENOSPC, "No space left on device")
            kept(descriptor)

        monkeypatch.setattr(os, "fsync", full)

    def test_a_damaged_state_and_a_failing_write_lose_no_epoch(self, whole, monkeypatch):
        """The damaged last.pt must not replace the intact before.pt while its successor is not yet written."""
        run, result = whole
        train(run, stop_after=2)
        flip(checkpoint.folder(run) / "last.pt")
        with (
            monkeypatch.context() as patch,
            pytest.raises(UserError, match="No space left"),
            pytest.warns(UserWarning, match="damaged"),
        ):
            self.fail_next(patch, "last.pt")
            train(run)
        with pytest.warns(UserWarning, match="damaged"):
            assert len(checkpoint.last_good_state(run)["history"]) == 1
        with pytest.warns(UserWarning, match="damaged"):
            train(run)
        assert_same(finished(run), result)

    def test_a_damaged_state_never_replaces_an_intact_one(self, folder):
        run = short(folder, epochs=6)
        train(run, stop_after=2)
        data_, learner = batches.loaders(run), DeepAll(run, 2)
        history = checkpoint.resume(run, learner, data_)
        first = files.read_checked(checkpoint.folder(run) / "before.pt")
        flip(checkpoint.folder(run) / "last.pt")
        history.append({**checkpoint.train_epoch(learner, data_, 2), "seconds": 0.0})
        checkpoint.checkpoint(run, learner, history)
        assert files.read_checked(checkpoint.folder(run) / "before.pt") == first
        assert len(checkpoint.last_good_state(run)["history"]) == 3

    @pytest.mark.parametrize("name", ["last.pt", "history.csv", "model.pt", "metrics.json"])
    def test_a_process_that_is_taken_over_during_a_write_does_not_finish_it(self, name, folder, monkeypatch):
        """Suspended after the check of the lock, taken over by another host, which finishes the run, then woken."""
        run = short(folder, epochs=2)
        train(run, stop_after=1)
        place, stolen = checkpoint.folder(run), json.dumps({"host": "elsewhere", "pid": 1, "boot": "other"})

        def suspended(descriptor, kept=os.fsync):
            kept(descriptor)
            if f"/.{name}." in os.readlink(f"/proc/self/fd/{descriptor}"):
                (place / "lock").write_text(stolen)
                (place / name).write_text("of the other")

        monkeypatch.setattr(os, "fsync", suspended)
        with pytest.raises(UserError, match="was taken over by process 1 on elsewhere"):
            train(run)
        assert (place / name).read_text() == "of the other"

    @pytest.mark.parametrize("state", [[], {}, 7, {"method": 1, "best": 2, "history": 3}, {"history": [{}]}, None])
    def test_an_invalid_checkpoint_raises_user_error(self, state, folder):
        run = short(folder)
        train(run, stop_after=1)
        files.write_checked(checkpoint.folder(run) / "last.pt", checkpoint.serialized(state))
        with pytest.raises(UserError, match=r"last\.pt is not a checkpoint of this project; move it away"):
            train(run)

    @pytest.mark.parametrize("state", [[], {}, 7, {"h1.weight": 3}])
    def test_invalid_weights_raise_user_error(self, state, folder):
        run = short(folder)
        result = train(run)
        result.pop("model_sha256")
        (checkpoint.folder(run) / "model.pt").write_bytes(checkpoint.serialized(state))
        files.write(checkpoint.folder(run) / "metrics.json", json.dumps(result))
        for read in (lambda: train(run), lambda: checkpoint.load_model(run, 2)):
            with pytest.raises(UserError, match=r"model\.pt holds the state of another network"):
                read()

    @pytest.mark.parametrize("content", ["[]", "null", "7", "[" * 100_000, "{", ""])
    def test_an_invalid_config_raises_user_error(self, content, folder):
        run = short(folder)
        train(run, stop_after=1)
        (checkpoint.folder(run) / "config.json").write_text(content)
        with pytest.raises(UserError, match=r"config\.json.* is damaged \(.*\); move the file away"):
            train(run)

    def test_a_finished_run_without_its_config_is_shown_with_a_warning(self, folder):
        run = short(folder)
        result = train(run)
        (checkpoint.folder(run) / "config.json").unlink()
        with pytest.warns(UserWarning, match="another version of the code"):
            assert train(run) == result

    def test_what_a_kill_after_metrics_json_left_is_removed(self, folder):
        run = short(folder)
        train(run)
        place = checkpoint.folder(run)
        tidy = {file.name for file in place.iterdir()}

        def die():
            lock.take(place)
            for name in (*checkpoint.STATES, ".model.pt.1.tmp"):
                (place / name).write_text("left behind")
            os.kill(os.getpid(), signal.SIGKILL)

        code(child(die))
        assert {file.name for file in place.iterdir()} > tidy
        train(run)
        assert {file.name for file in place.iterdir()} == tidy

    @pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
    def test_a_finished_run_that_may_not_be_written_is_shown(self, folder, monkeypatch):
        with tempfile.TemporaryDirectory() as root:
            os.chmod(root, 0o755)
            shutil.copytree(folder, f"{root}/mine")
            monkeypatch.setattr(paths, "RUNS", Path(root) / "runs")
            monkeypatch.setattr(paths, "CACHE", Path(root) / "cache")
            run = short(f"{root}/mine")
            data_, result = batches.loaders(run), train(run)
            for name in ("last.pt", "lock"):
                (checkpoint.folder(run) / name).write_text("left behind")
            os.chmod(paths.RUNS, 0o755)
            os.chmod(checkpoint.folder(run), 0o555)

            def as_nobody():
                os.setuid(65534)
                learner = DeepAll(run, 2)
                history = checkpoint.resume(run, learner, data_)
                assert len(history) == 3 and checkpoint.finish(run, learner, history) == result

            assert code(child(as_nobody)) == 0


class TestIdentity:
    """Data, weights and code are part of a run."""

    def test_data_that_changed_stop_an_unfinished_run(self, whole, folder):
        run, result = whole
        train(run, stop_after=2)
        kept = (checkpoint.folder(run) / "last.pt").read_bytes()
        file = folder / "ink" / "cat" / "01.png"
        original = file.read_bytes()
        Image.new("RGB", (50, 50), "red").save(file)
        with pytest.raises(UserError, match=r"was trained with other data \(digest \w{16}, now \w{16}\); restore the"):
            train(run)
        assert (checkpoint.folder(run) / "last.pt").read_bytes() == kept
        file.write_bytes(original)
        train(run)
        assert_same(finished(run), result)

    def test_an_image_that_was_added_stops_a_finished_run_from_being_shown(self, folder):
        run = short(folder)
        train(run)
        Image.new("RGB", (50, 50), "red").save(folder / "ink" / "cat" / "new.png")
        with pytest.raises(UserError, match="was trained with other data"):
            train(run)

    def test_a_class_that_was_renamed_stops_it_too(self, folder):
        run = short(folder)
        train(run)
        for domain in ("clay", "ink", "wool"):
            (folder / domain / "dog").rename(folder / domain / "wolf")
        with pytest.raises(UserError, match="was trained on the classes cat, dog; now they are others"):
            train(run)

    def test_one_relative_folder_seen_from_two_places_is_two_runs(self, folder, monkeypatch):
        ids = []
        for place in ("one", "two"):
            shutil.copytree(folder, folder.parent / place / "img")
            monkeypatch.chdir(folder.parent / place)
            run = short("img")
            ids.append(run.id)
            assert run.dataset == f"folder:{folder.parent / place / 'img'}"
        assert len(set(ids)) == 2

    @pytest.fixture
    def weights(self, tmp_path):
        file = tmp_path / "w.pt"
        torch.save(torchvision.models.resnet18().state_dict(), file)
        return file

    def test_a_weights_file_that_was_replaced_is_noticed(self, folder, weights):
        run = short(folder, backbone="resnet18", weights=str(weights), epochs=2)
        train(run, stop_after=1)
        torch.manual_seed(7)
        torch.save(torchvision.models.resnet18().state_dict(), weights)
        with pytest.raises(
            UserError, match=r"was trained with other weights \(digest \w{16}, now \w{16}\); restore the"
        ):
            train(run)

    def test_a_weights_file_is_the_same_from_every_working_directory(self, weights, monkeypatch):
        monkeypatch.setattr(paths, "ROOT", weights.parent)
        runs = [Run("pacs", "photo", weights=str(weights))]
        monkeypatch.chdir(weights.parent)
        runs.append(Run("pacs", "photo", weights="w.pt"))
        monkeypatch.chdir("/")
        runs.append(Run("pacs", "photo", weights="w.pt"))
        assert {run.weights for run in runs} == {"w.pt"}
        monkeypatch.setattr(paths, "ROOT", Path("/usr"))
        monkeypatch.chdir(weights.parent)
        assert Run("pacs", "photo", weights="w.pt").weights == str(weights)

    def test_folders_of_earlier_versions_without_these_fields_resume(self, whole):
        run, result = whole
        train(run, stop_after=2)
        file = checkpoint.folder(run) / "config.json"
        config = json.loads(file.read_text())
        for name in ("data_digest", "weights_digest", "threads", "capability"):
            config["provenance"].pop(name)
        for name in ("classes", "augment"):
            config.pop(name)
        file.write_text(json.dumps(config))
        assert len(checkpoint.resume(run, DeepAll(run, 2), batches.loaders(run))) == 2
        train(run)
        assert_same(finished(run), result)

    def test_another_number_of_threads_is_warned_of_on_resume(self, folder):
        run = short(folder)
        train(run, stop_after=1)
        torch.set_num_threads(2)
        with pytest.warns(UserWarning, match=r"resumes on another machine or setting \(threads 1 -> 2\)"):
            train(run, stop_after=1)

    def test_a_finished_run_of_other_code_is_set_aside_and_trained_again_if_asked(self, folder, monkeypatch):
        run = short(folder)
        with monkeypatch.context() as patch:
            for module in (checkpoint, provenance):
                patch.setattr(module, "training_digest", lambda run: "older code")
            old = train(run)
        data_, learner = batches.loaders(run), DeepAll(run, 2)
        with pytest.warns(UserWarning, match="another version of the code: moved to"):
            assert checkpoint.resume(run, learner, data_, again=True) == []
        (kept,) = (paths.RUNS / ".replaced").glob(f"{run.id}.*/metrics.json")
        assert json.loads(kept.read_text()) == old and not (kept.parent / "lock").exists()
        train(run)
        before = version(checkpoint.folder(run) / "metrics.json")
        checkpoint.resume(run, learner, data_, again=True)  # now it comes from this code
        assert version(checkpoint.folder(run) / "metrics.json") == before


class TestCache:
    """A cache is read in full once, and again when it has been written to."""

    @pytest.fixture
    def reads(self, monkeypatch):
        """The caches that were read in full."""
        seen, digest = [], cache.content_digest
        monkeypatch.setattr(cache, "content_digest", lambda images: (seen.append(images.filename), digest(images))[1])
        return seen

    def test_a_cache_is_not_read_in_full_at_every_open(self, folder, reads):
        run = short(folder)
        for _ in range(3):
            checkpoint.provenance(batches.loaders(run))
        assert reads == []  # its digest was computed while it was written

    def test_a_cache_without_a_record_is_read_in_full_once(self, folder, reads):
        batches.loaders(short(folder))
        (record,) = paths.CACHE.glob("*.json")
        for content in (None, "damaged", "[]"):
            record.unlink() if content is None else record.write_text(content)
            reads.clear()
            batches.loaders(short(folder))
            batches.loaders(short(folder))
            assert len(reads) == 1

    @pytest.mark.parametrize("damage", [flip, cut, empty])
    def test_damage_is_found_although_size_and_time_were_set_back(self, damage, folder, reads):
        run = short(folder)
        expected = np.array(batches.loaders(run).table.images)
        (file,) = paths.CACHE.glob("*.npy")
        known = file.stat()
        damage(file)
        os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
        with pytest.warns(UserWarning, match="decoding it again"):
            np.testing.assert_array_equal(batches.loaders(run).table.images, expected)

    def test_damage_below_the_file_system_is_found_by_a_full_check_and_repaired(self, folder, monkeypatch):
        run = short(folder)
        expected = np.array(batches.loaders(run).table.images)
        (file,) = cache.caches(run.dataset)
        kept, identity = cache._identity(file), cache._identity
        flip(file)
        monkeypatch.setattr(cache, "_identity", lambda _: kept)  # as if no time had changed
        assert cache.is_intact(file) and not cache.is_intact(file, in_full=True)
        monkeypatch.setattr(cache, "_identity", identity)
        with pytest.warns(UserWarning, match="decoding it again"):
            np.testing.assert_array_equal(batches.loaders(run).table.images, expected)

    def test_the_recorded_digest_is_that_of_the_pixels(self, folder):
        images = batches.loaders(short(folder)).table.images
        assert cache.data_digest(images) == cache.content_digest(images)


class TestDivergence:
    def test_a_term_that_becomes_nan_is_named_and_the_last_epoch_is_kept(self, whole, monkeypatch):
        run, result = whole
        train(run, stop_after=1)
        kept = (checkpoint.folder(run) / "last.pt").read_bytes()
        sound, steps = DeepAll.update, []

        def diverging(self, *arguments):
            steps.append(arguments)
            return sound(self, *arguments) | ({"loss": torch.tensor(float("nan"))} if len(steps) == 3 else {})

        with monkeypatch.context() as patch, pytest.raises(UserError, match=r"loss became nan in epoch 2, step 3"):
            patch.setattr(DeepAll, "update", diverging)
            train(run)
        assert (checkpoint.folder(run) / "last.pt").read_bytes() == kept
        train(run)
        assert_same(finished(run), result)

    def test_a_real_divergence_is_named(self, folder):
        with pytest.raises(UserError, match=r"became (nan|inf) in epoch \d"):
            train(short(folder, lr=1e12))

    def test_weights_that_become_nan_are_not_kept(self, whole):
        run, _ = whole
        data_, learner = batches.loaders(run), DeepAll(run, 2)
        checkpoint.resume(run, learner, data_)
        row = {"epoch": 0, **metrics.evaluate(learner, data_), "seconds": 0.0}
        with torch.no_grad():
            learner.h1.bias[0] = float("inf")
        with pytest.raises(UserError, match=r"h1\.bias became inf in epoch 1"):
            checkpoint.checkpoint(run, learner, [row])
        assert not (checkpoint.folder(run) / "last.pt").exists()


class TestTwoAtOnce:
    def test_of_many_one_trains_and_the_others_say_so(self, whole):
        run, result = whole
        batches.loaders(run)
        codes = [code(pid) for pid in [child(lambda: train(run)) for _ in range(5)]]
        assert set(codes) <= {0, REPORTED} and codes.count(0) >= 1  # a late process finds it finished
        assert_same(finished(run), result)

    def test_the_message_names_the_process_and_its_death_releases_the_run(self, whole):
        run, result = whole
        place = checkpoint.folder(run)
        pid = child(lambda: (lock.take(place), time.sleep(60)))
        while not (place / "lock").exists():
            time.sleep(0.01)
        with pytest.raises(UserError, match=f"is being trained by process {pid} on {platform.node()}"):
            train(run)
        os.kill(pid, signal.SIGKILL)
        code(pid)
        train(run)
        assert_same(finished(run), result)

    def of_elsewhere(self, place, **other):
        holder = {"host": "elsewhere", "pid": 1, "boot": "other", "job": None, "restart": 0, "id": "0"} | other
        files.write(place / "lock", json.dumps(holder))

    def test_a_lock_of_another_host_with_a_heartbeat_is_respected(self, folder, monkeypatch):
        monkeypatch.setattr(lock, "PATIENCE", 5)
        place = checkpoint.folder(short(folder))
        self.of_elsewhere(place)
        toucher = threading.Timer(0.5, os.utime, [place / "lock"])
        toucher.start()
        with pytest.raises(UserError, match="by process 1 on elsewhere"), pytest.warns(UserWarning, match="heartbeat"):
            lock.take(place)

    def test_a_lock_of_the_version_before_is_watched_too(self, folder, monkeypatch):
        """It relied on a heartbeat alone: the kernel does not know it, even on this host."""
        monkeypatch.setattr(lock, "PATIENCE", 5)
        place = checkpoint.folder(short(folder))
        holder = {"host": platform.node(), "pid": os.getppid(), "began": 0.0, "job": None}
        files.write(place / "lock", json.dumps(holder))
        toucher = threading.Timer(0.5, os.utime, [place / "lock"])
        toucher.start()
        with pytest.raises(UserError, match=f"by process {os.getppid()}"), pytest.warns(UserWarning, match="heartbeat"):
            lock.take(place)

    def test_a_lock_of_another_host_without_a_heartbeat_is_taken_over(self, whole, monkeypatch):
        run, result = whole
        monkeypatch.setattr(lock, "PATIENCE", 0.5)
        self.of_elsewhere(checkpoint.folder(run))
        with pytest.warns(UserWarning, match="belongs to another host"):
            train(run)
        assert_same(finished(run), result)

    def test_a_later_process_of_the_same_number_is_not_the_holder(self, folder):
        """The pid of a dead holder was reused by a living process of this host."""
        place = checkpoint.folder(short(folder))
        self.of_elsewhere(place, host=platform.node(), pid=os.getppid(), boot=lock._me()["boot"])
        lock.take(place)
        assert json.loads((place / "lock").read_text())["pid"] == os.getpid()

    def test_a_step_of_the_clock_does_not_end_a_healthy_run(self, folder, monkeypatch):
        """A process's start time is computed from the boot time, which moves when the clock is set."""
        place = checkpoint.folder(short(folder))
        lock.take(place)
        moved = psutil.Process().create_time() + 1
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: moved)
        monkeypatch.setattr(time, "time", lambda: 1e9)
        lock.check(place)

    @pytest.fixture
    def held(self, folder):
        """A run's folder, and the process that holds its lock as task 0 of a SLURM job."""
        place, ready = checkpoint.folder(short(folder)), os.pipe()

        def hold():
            os.environ["SLURM_JOB_ID"] = "77"
            lock.take(place)
            os.write(ready[1], b"1")
            time.sleep(60)

        pid = child(hold)
        os.read(ready[0], 1)
        yield place, pid
        os.kill(pid, signal.SIGKILL)
        code(pid)

    def test_a_second_task_of_one_slurm_job_names_the_first_and_leaves(self, held, monkeypatch):
        place, pid = held
        monkeypatch.setenv("SLURM_JOB_ID", "77")
        lock._identity.cache_clear()
        with pytest.raises(UserError, match=f"is being trained by process {pid} on {platform.node()}"):
            lock.take(place)
        lock._identity.cache_clear()

    def test_a_holder_in_another_pid_namespace_is_not_evicted(self, held):
        """Seen from another container of this host, the holder's pid does not exist."""
        place, _ = held
        named = json.loads((place / "lock").read_text()) | {"pid": 2**22 + 1}
        (place / "lock").write_text(json.dumps(named))
        with pytest.raises(UserError, match=f"is being trained by process {2**22 + 1}"):
            lock.take(place)

    def test_workers_that_outlive_their_process_do_not_keep_its_lock(self, folder):
        """Processes that load data are forked while the lock is held."""
        place, pids = checkpoint.folder(short(folder)), os.pipe()

        def hold():
            lock.take(place)
            os.write(pids[1], str(child(lambda: time.sleep(60))).encode())
            time.sleep(60)

        pid = child(hold)
        worker = int(os.read(pids[0], 20))
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        code(pid)
        lock.take(place)
        lock.check(place)
        os.kill(worker, signal.SIGKILL)

    def test_a_holder_that_is_suspended_is_not_evicted_on_its_own_host(self, held, monkeypatch):
        place, pid = held
        monkeypatch.setattr(lock, "PATIENCE", 0.3)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(UserError, match=f"is being trained by process {pid}"):
            lock.take(place)

    def test_a_job_that_slurm_restarts_takes_over_from_itself_at_once(self, folder, monkeypatch):
        monkeypatch.setenv("SLURM_JOB_ID", "77")
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        lock._identity.cache_clear()
        place = checkpoint.folder(short(folder))
        self.of_elsewhere(place, job="77")
        lock.take(place)
        assert json.loads((place / "lock").read_text())["host"] == platform.node()
        lock._identity.cache_clear()

    def test_tasks_of_one_job_on_two_hosts_respect_each_others_heartbeat(self, folder, monkeypatch):
        monkeypatch.setenv("SLURM_JOB_ID", "77")
        monkeypatch.setattr(lock, "PATIENCE", 5)
        lock._identity.cache_clear()
        place = checkpoint.folder(short(folder))
        self.of_elsewhere(place, job="77")
        threading.Timer(0.5, os.utime, [place / "lock"]).start()
        with pytest.raises(UserError, match="by process 1 on elsewhere"), pytest.warns(UserWarning, match="heartbeat"):
            lock.take(place)
        lock._identity.cache_clear()

    def test_where_the_file_system_has_no_locks_the_heartbeat_decides(self, folder, monkeypatch):
        monkeypatch.setattr(lock, "PATIENCE", 0.5)
        place = checkpoint.folder(short(folder))
        self.of_elsewhere(place, boot=lock._me()["boot"])
        refused = OSError(errno.ENOLCK, "No locks available")
        monkeypatch.setattr(lock.FileLock, "acquire", lambda *_, **__: (_ for _ in ()).throw(refused))
        with pytest.warns(UserWarning, match="heartbeat"):
            lock.take(place)
        lock.check(place)

    @pytest.mark.parametrize("content", ["", "[]", "null", "7", '"x"', '{"pid": 1}', "{", "[" * 100_000, "\x00\xff"])
    def test_a_lock_that_names_no_process_is_taken(self, content, folder):
        place = checkpoint.folder(short(folder))
        files.write(place / "lock", content)
        lock.take(place)
        lock.check(place)

    def test_a_process_that_was_taken_over_writes_nothing(self, folder):
        run = short(folder)
        data_, learner = batches.loaders(run), DeepAll(run, 2)
        checkpoint.resume(run, learner, data_)
        row = {"epoch": 0, **metrics.evaluate(learner, data_), "seconds": 0.0}
        self.of_elsewhere(checkpoint.folder(run))
        before = {file.name for file in checkpoint.folder(run).iterdir()}
        for write in (checkpoint.checkpoint, checkpoint.finish):
            with pytest.raises(UserError, match="was taken over by process 1 on elsewhere"):
                write(run, learner, [row])
        assert {file.name for file in checkpoint.folder(run).iterdir()} == before

    def test_the_holder_has_a_heartbeat(self, folder, monkeypatch):
        monkeypatch.setattr(lock, "BEAT", 0.05)
        monkeypatch.setattr(lock, "PATIENCE", 5)
        place = checkpoint.folder(short(folder))
        lock.take(place)
        with pytest.warns(UserWarning, match="heartbeat"):
            assert lock._is_touched(place / "lock")


class TestNoRoom:
    def test_a_limit_on_the_size_of_files_is_reported_and_the_previous_checkpoint_kept(self, whole):
        run, result = whole
        train(run, stop_after=1)
        kept = (checkpoint.folder(run) / "last.pt").read_bytes()
        lock.release(checkpoint.folder(run))

        def limited():
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) // 2, len(kept) // 2))
            train(run)

        assert code(child(limited)) == REPORTED
        assert (checkpoint.folder(run) / "last.pt").read_bytes() == kept
        assert not [*checkpoint.folder(run).glob(".*")]
        train(run)
        assert_same(finished(run), result)

    def test_a_full_disk_is_reported_and_the_previous_checkpoint_kept(self, whole, tmp_path):
        run, result = whole
        disk = tmp_path / "disk"
        disk.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], capture_output=True).returncode:
            pytest.skip("mounting a small disk needs root")
        try:
            checkpoint.folder(run).parent.mkdir(parents=True, exist_ok=True)
            checkpoint.folder(run).symlink_to(disk)
            train(run, stop_after=1)
            kept = (disk / "last.pt").read_bytes()
            room = shutil.disk_usage(disk).free
            (disk / "filler").write_bytes(bytes(room - 4096))
            with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
                train(run)
            assert kept in [(disk / name).read_bytes() for name in checkpoint.STATES if (disk / name).exists()]
            assert not [*disk.glob(".*")]
            (disk / "filler").unlink()
            train(run)
            assert_same(finished(run), result)
        finally:
            lock.release(checkpoint.folder(run))
            subprocess.run(["umount", "--lazy", disk], check=True)

    @pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
    def test_a_read_only_folder_is_reported(self, folder, monkeypatch):
        with tempfile.TemporaryDirectory() as place:
            os.chmod(place, 0o755)
            shutil.copytree(folder, f"{place}/mine")
            monkeypatch.setattr(paths, "RUNS", Path(place) / "runs")
            paths.RUNS.mkdir(mode=0o555)
            run = short(f"{place}/mine")
            data_ = batches.loaders(run)

            def as_nobody():
                os.setuid(65534)
                checkpoint.resume(run, DeepAll(run, 2), data_)

            assert code(child(as_nobody)) == REPORTED
            assert not [*paths.RUNS.iterdir()]


ROOT = Path(__file__).parent.parent
HOSTILE = """
from cirl.study import catalog
from cirl.run.config import Run
from cirl.study import catalog
from cirl.study.studies import STUDIES

STUDIES["hostile"] = STUDIES["digits"]
catalog.all_runs = lambda *_: [Run(**{fields!r})]
catalog.notebooks = lambda *_: {{}}
include: {snakefile!r}
"""


DRIVERS = []  # that a test has begun


def begin(root, *arguments, study="hostile", core="no", **variables):
    """A driver, in a process group of its own."""
    command = ["snakemake", "--cores", "1", "--rerun-incomplete", "--nolock", "--config", f"study={study}"]
    command += [f"core={core}"]
    environment = {**os.environ, "CIRL_ROOT": str(root), "PYTHONPATH": str(ROOT), **variables}
    out = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    interruptible = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore Ctrl-C
    command += ["--", *arguments]
    DRIVERS.append(subprocess.Popen(command, cwd=root, env=environment, preexec_fn=interruptible, **out))
    return DRIVERS[-1]


def end(driver):
    said = driver.communicate(timeout=900)[0]
    return driver.returncode, said


def alive(root):
    """The processes that work in a project."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("CIRL_ROOT") == str(root) and process.pid != os.getpid():
                found.append(process)
    return found


def until(holds, driver=None, seconds=900):
    """Wait for a condition; fail at once when the driver that should bring it about has ended."""
    stop = time.monotonic() + seconds
    while not holds():
        assert driver is None or driver.poll() is None, driver.stdout.read()
        assert time.monotonic() < stop
        time.sleep(0.02)


@pytest.mark.slow
class TestDriver:
    """Snakemake: no finished run is deleted, and the next call repeats what failed."""

    @pytest.fixture(autouse=True)
    def nothing_left(self):
        """A test that fails must not leave processes behind."""
        yield
        while DRIVERS:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(DRIVERS.pop().pid, signal.SIGKILL)

    @pytest.fixture
    def study(self, folder):
        """A project whose study is one run of seconds: its folder, the run, the target."""
        run = short(folder, epochs=2)
        (folder.parent / "notebooks").symlink_to(ROOT / "notebooks")
        text = HOSTILE.format(fields=vars(run), snakefile=str(ROOT / "Snakefile"))
        (folder.parent / "Snakefile").write_text(text)
        return folder.parent, run, f"data/runs/{run.id}/trained"

    def test_a_run_that_an_orphan_finished_is_kept(self, study):
        root, run, target = study
        place = checkpoint.folder(run)
        driver = begin(root, target)
        until((place / "lock").exists, driver)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        until((place / "metrics.json").exists)
        until(lambda: not (place / "lock").exists())
        before = {name: version(place / name) for name in ("metrics.json", "history.csv", "model.pt")}
        returned, said = end(begin(root, target))
        assert returned == 0, said
        assert {name: version(place / name) for name in before} == before

    def test_a_second_driver_says_that_one_is_at_work_and_harms_nothing(self, study):
        root, run, target = study
        first = begin(root, target)
        until((checkpoint.folder(run) / "lock").exists, first)
        returned, said = end(begin(root, target))
        assert returned != 0 and "Another snakemake is working on the study hostile in this folder" in said
        returned, said = end(first)
        assert returned == 0, said
        assert not re.search("Select jobs|Execute 1 jobs|Touching output", said)
        assert checkpoint.is_finished(run)
        assert "Nothing to be done" in end(begin(root, target))[1]

    def test_a_deleted_result_is_trained_again_and_a_finished_one_adopted(self, study):
        root, run, target = study
        train(run)
        before = version(checkpoint.folder(run) / "metrics.json")
        assert "Nothing to be done" in end(begin(root, target))[1]  # trained without Snakemake
        assert version(checkpoint.folder(run) / "metrics.json") == before
        (checkpoint.folder(run) / "metrics.json").unlink()
        returned, said = end(begin(root, target))
        assert returned == 0 and checkpoint.is_finished(run), said

    def test_after_ctrl_c_nothing_is_left_running_and_the_next_driver_resumes(self, folder, study):
        root = study[0]
        run = short(folder, epochs=40)
        text = HOSTILE.format(fields=vars(run), snakefile=str(ROOT / "Snakefile"))
        (root / "Snakefile").write_text(text)
        place, target = checkpoint.folder(run), f"data/runs/{run.id}/trained"
        driver = begin(root, target)
        until((place / "last.pt").exists, driver)
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
        assert end(driver)[0] != 0 and not checkpoint.is_finished(run)
        until(lambda: not alive(root))
        returned, said = end(begin(root, target))
        assert returned == 0 and checkpoint.is_finished(run), said
        resumed = re.search(r"(\d+) of 40 epochs done", (place / "02_train.ipynb").read_text(encoding="utf-8"))
        assert int(resumed[1]) >= 1
        result = json.loads((place / "metrics.json").read_text())
        shutil.rmtree(place)
        assert train(run)["model_sha256"] == result["model_sha256"]

    def test_a_finished_run_of_other_code_is_trained_again_whoever_trained_it(self, study):
        root, run, target = study
        train(run)
        file = checkpoint.folder(run) / "config.json"
        file.write_text(file.read_text().replace(checkpoint.training_digest(run), "0123456789abcdef"))
        returned, said = end(begin(root, target))
        assert returned == 0 and "0 of 1 runs finished" in said, said
        assert json.loads(file.read_text())["provenance"]["code"] == checkpoint.training_digest(run)
        assert len([*(paths.RUNS / ".replaced").glob("*/metrics.json")]) == 1

    def test_a_file_system_without_locks_is_enough(self, study):
        root, run, target = study
        train(run)
        (checkpoint.folder(run) / "metrics.json").rename(root / "kept")
        (root / "sitecustomize.py").write_text(
            "import errno, fcntl\n\ndef refuse(*_):\n    raise OSError(errno.ENOLCK, 'No locks available')\n\n"
            "fcntl.flock = refuse\n"
        )
        returned, said = end(begin(root, target, PYTHONPATH=f"{root}{os.pathsep}{ROOT}"))
        assert returned == 0 and checkpoint.is_finished(run), said
        assert "No lock in this folder (No locks available): do not start a second snakemake" in said

    @pytest.fixture
    def tiny(self, workspace):
        """A project in which the core of tiny is finished, with the committed records."""
        for name in ("notebooks", "Snakefile"):
            (workspace / name).symlink_to(ROOT / name)
        for run in catalog.core("tiny"):
            record(run, 60)
        shutil.copy(ROOT / "data" / "results.csv", paths.DATA)
        return workspace

    def test_the_core_is_compared_again_when_the_records_change(self, tiny):
        target = "figures/tiny/reproduced.md"

        def compare():
            return end(begin(tiny, target, study="tiny", core="yes"))

        assert "runs agree with the records" in compare()[1]
        assert "Nothing to be done" in compare()[1]
        (paths.DATA / "results.csv").write_text("id,study\nbroken")
        returned, said = compare()
        assert returned != 0 and "results.csv, line 2, is damaged. Restore it with git checkout" in said
        assert "Traceback" not in said
        shutil.copy(ROOT / "data" / "results.csv", paths.DATA)
        returned, said = compare()
        assert returned == 0 and "runs agree with the records" in said

    def test_a_collection_that_failed_is_repeated(self, workspace):
        """Also after `git checkout`, which the message advises and which makes the file newer than any run."""
        (workspace / "notebooks").symlink_to(ROOT / "notebooks")
        (workspace / "Snakefile").symlink_to(ROOT / "Snakefile")
        results, history, target = (
            paths.DATA / "results.csv",
            paths.DATA / "history.csv",
            "data/executed/tiny/collected",
        )
        for run in catalog.all_runs("tiny"):
            record(run, 60)
        committed = {
            file: (ROOT / "data" / file.name).read_text().splitlines()[0] + "\n" for file in (results, history)
        }
        results.write_text("id,study\nbroken")
        returned, said = end(begin(workspace, target, study="tiny"))
        assert returned != 0 and "results.csv, line 2, is damaged. Restore" in said and "Traceback" not in said
        for _ in range(2):
            for file, text in committed.items():
                file.write_text(text)
            returned, said = end(begin(workspace, target, study="tiny"))
            assert returned == 0, said
            for file in committed:
                assert set(pd.read_csv(file)["id"]) >= {run.id for run in catalog.all_runs("tiny")}
        assert "Nothing to be done" in end(begin(workspace, target, study="tiny"))[1]


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
class TestReadOnly:
    """Folders of somebody else: shown if they may be read, refused in a sentence if not."""

    @pytest.fixture
    def foreign(self, workspace, monkeypatch):
        """A finished run that everybody may read, and nobody else may write."""
        with tempfile.TemporaryDirectory() as root:
            monkeypatch.setattr(paths, "RUNS", Path(root) / "runs")
            monkeypatch.setattr(paths, "DATA", Path(root))
            run = Run(method="deepall")
            record(run, 60)
            for place in (root, paths.RUNS, checkpoint.folder(run)):
                os.chmod(place, 0o755)
            yield run

    def as_nobody(self, do):
        assert code(child(lambda: (os.setuid(65534), do()))) == 0

    def test_a_finished_run_that_cannot_be_marked_counts_as_trained(self, foreign):
        def look():
            assert marks.mark(foreign) and marks.evidence(foreign) == f"data/runs/{foreign.id}/metrics.json"

        self.as_nobody(look)
        assert marks.mark(foreign) and marks.evidence(foreign) == f"data/runs/{foreign.id}/trained"

    def test_a_folder_that_may_not_be_entered_is_missing_in_tables_and_refused_by_training(self, foreign):
        os.chmod(checkpoint.folder(foreign), 0o700)

        def look():
            assert records.load_runs({"DeepAll": [foreign]}).attrs["missing"] == [foreign.id]
            assert not marks.mark(foreign) and not records.recorded({foreign.id})
            for refused in (lambda: checkpoint.resume(foreign, DeepAll(foreign, 10), None), lambda: load(foreign.id)):
                with pytest.raises(UserError, match=r"lock cannot be written \(Permission denied\)|is not a run"):
                    refused()
            with pytest.raises(UserError, match=r"\.collect\.lock cannot be written \(Permission denied\)"):
                records.collect([foreign], "tiny")

        self.as_nobody(look)

    @pytest.mark.parametrize("name", ["config.json", "metrics.json", "model.pt"])
    def test_a_file_that_may_not_be_read_is_named(self, name, foreign):
        place = checkpoint.folder(foreign)
        (place / "model.pt").write_bytes(b"")
        config = json.loads((place / "config.json").read_text()) | {"classes": ["a", "b"]}
        (place / "config.json").write_text(json.dumps(config))
        os.chmod(place / name, 0o600)

        def look():
            with pytest.raises(UserError, match=rf"{name} cannot be read \(Permission denied\)"):
                load(place)
            table = records.load_runs({"DeepAll": [foreign]}, importance=True)
            assert name in table.attrs["skipped"][foreign.id]

        self.as_nobody(look)


def test_a_file_where_a_folder_should_be_is_one_sentence(workspace):
    run = Run(method="deepall")
    files.write(checkpoint.folder(run), "not a folder")
    with pytest.raises(UserError, match=f"{run.id} is not a folder; move it away"):
        marks.mark(run)


class Evil:
    def __reduce__(self):
        return os.system, ("touch pwned",)


class TestUntrusted:
    @pytest.fixture
    def evil(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        assert pickle.loads(pickle.dumps(Evil())) == 0 and Path("pwned").exists()  # it would
        Path("pwned").unlink()
        return checkpoint.serialized({"method": Evil(), "best": {}, "history": []})

    def test_a_state_that_would_run_code_is_refused(self, folder, evil):
        run = short(folder)
        train(run, stop_after=1)
        files.write_checked(checkpoint.folder(run) / "last.pt", evil)
        with pytest.raises(UserError, match=r"last\.pt holds more than tensors and numbers"):
            train(run)
        assert not Path("pwned").exists()

    def test_weights_that_would_run_code_are_refused(self, folder, evil):
        run = short(folder)
        result = train(run)
        (checkpoint.folder(run) / "model.pt").write_bytes(evil)
        result.pop("model_sha256")
        files.write(checkpoint.folder(run) / "metrics.json", json.dumps(result))
        with pytest.raises(UserError, match=r"model\.pt holds more than tensors and numbers"):
            checkpoint.load_model(run, 2)
        assert not Path("pwned").exists()

    def test_the_state_of_another_network_is_refused(self, folder):
        run, other = short(folder), short(folder, dim=32)
        for each in (run, other):
            train(each, stop_after=1)
        shutil.copy(checkpoint.folder(other) / "last.pt", checkpoint.folder(run) / "last.pt")
        with pytest.raises(UserError, match="holds the state of another network"):
            train(run)

    @pytest.mark.slow
    def test_nothing_of_a_path_reaches_a_shell(self, folder, tmp_path):
        """A run through Snakemake and papermill on a folder whose name is a program."""
        there = tmp_path / "work"
        hostile = there / 'it\'s "a" $(touch pwned) `touch pwned`\n; touch pwned & {STUDY} %s'
        shutil.copytree(folder, hostile)
        (there / "notebooks").symlink_to(ROOT / "notebooks")
        run = short(hostile, epochs=1)
        (there / "Snakefile").write_text(HOSTILE.format(fields=vars(run), snakefile=str(ROOT / "Snakefile")))
        command = ["snakemake", "--cores", "1", "--config", "study=hostile", "--", f"data/runs/{run.id}/trained"]
        environment = {**os.environ, "CIRL_ROOT": str(there), "PYTHONPATH": str(ROOT)}
        said = subprocess.run(command, cwd=there, env=environment, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr
        assert json.loads((there / "data" / "runs" / run.id / "metrics.json").read_text())["id"] == run.id
        assert not [*there.rglob("pwned")] and not Path("pwned").exists()

    def test_an_image_bomb_is_named_and_not_decoded(self, folder):
        bomb = folder / "ink" / "cat" / "bomb.png"
        Image.new("1", (10_000, 8_000)).save(bomb)
        with pytest.raises(UserError, match=r"bomb\.png cannot be read as an image \(10000 x 8000 pixels"):
            batches.loaders(short(folder))

    def test_a_truncated_image_is_named(self, folder):
        file = folder / "ink" / "cat" / "00.jpg"
        file.write_bytes(file.read_bytes()[:300])
        with pytest.raises(UserError, match=r"00\.jpg cannot be read as an image"):
            batches.loaders(short(folder))


def unnamed_encodings(source):
    """The lines that read or write text without naming its encoding."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        of_image = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) in ("Image", "tarfile")
        binary = any(isinstance(each, ast.Constant) and "b" in str(each.value) for each in node.args[1:2])
        named = any(keyword.arg == "encoding" for keyword in node.keywords)
        if name in ("read_text", "write_text", "open") and not (of_image or binary or named):
            yield f"{node.lineno}: {ast.unparse(node)}"


class TestText:
    def test_every_text_file_is_read_and_written_as_utf_8(self):
        sources = {file: file.read_text(encoding="utf-8") for file in (ROOT / "cirl").rglob("*.py")}
        for file in (ROOT / "notebooks").glob("*.ipynb"):
            code = [
                cell["source"] for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] if "outputs" in cell
            ]
            sources[file] = "\n".join("".join(lines) for lines in code)
        assert len(sources) > 80
        assert {file.name: found for file, text in sources.items() if (found := [*unnamed_encodings(text)])} == {}

    def test_a_run_and_its_files_do_not_depend_on_the_locale(self, folder):
        steps = f"""
from helpers import short, train
from cirl.run import checkpoint, files
run = short({str(folder)!r})
train(run, stop_after=1)
train(run)
files.write(checkpoint.folder(run) / "note.json", '{{"word": "gr\\u00f6\\u00dfer \\u72ac"}}')
print(ascii(files.read_json(checkpoint.folder(run) / "note.json")["word"]))
"""
        plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "CIRL_ROOT": str(folder.parent)}
        line = [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning:cirl", "-c", steps]
        environment = {**os.environ, **plain, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == ascii("größer 犬")
