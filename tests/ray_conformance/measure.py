"""Run Ray's own scripts and tests on hpctrain, and write what came of each to ``results.json``.

``python -m tests.ray_conformance.measure --code DIR [--kind script] [--only REGEX]``, where DIR is
what ``fetch.py`` filled. One at a time, on CPUs, with two workers.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.ray_conformance import stand_ins
from tests.ray_conformance.applies import Program, absent_package, reason_of_script
from tests.ray_conformance.port import blocks_of, blocks_of_module, port
from tests.ray_conformance.tests_of_ray import run_tests

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"

# Edits that docs/ray-train.rst and docs/tune.rst name, tried where the ported script fails.
DOCUMENTED = {
    r"\bdmatrix_params=": "dataset_params=",
    r"\blocal_dir=": "storage_path=",
    r"from hpctrain.huggingface import RayTrainReportCallback": (
        "from hpctrain.huggingface import ReportCallback as RayTrainReportCallback"
    ),
    r"from hpctrain.(xgboost|lightgbm) import RayTrainReportCallback": (
        r"from hpctrain.\1 import TrainReportCallback as RayTrainReportCallback"
    ),
    r"\bstorage_path=([\"'])s3://[^\"']*\1": r"storage_path=\1@FOLDER@/storage\1",
    # A batch among the metrics.
    r"(next\(iter\(\w+\.iter_batches\(batch_format=\"pandas\"\)\)\))(?!\.)": r"\1.to_dict()",
    r"with open\(path, \"rb\"\) as \w+:\n +preprocessor = \w+\.load\(\w+\)": (
        "preprocessor = checkpoint.get_preprocessor()"
    ),
    r"(\.from_checkpoint\(checkpoint, Torch\w*Predictor)\)": r"\1, model=model)",
    r"\n *from hpctrain\.tune\.search import ConcurrencyLimiter\n": "\n",
    r"\n *(\w+) = ConcurrencyLimiter\(\1, max_concurrent=\d+\)": "",
    r"\n *(reuse_actors|chdir_to_trial_dir)=\w+,": "",
    r"(tune\.RunConfig\(\s*name=\"\w+\",)(?! existing)": r'\1 existing="restart",',
    r"([\w\[\]]+)\.metrics(\[|\.get\()\"training_iteration\"(, 0)?[\])]": (
        r"len(\1.metrics_history)"
    ),
    r"( +)def on_trial_result\(self, iteration, trials, trial, result, \*\*info\):": (
        r"\1def open(self, trial):\n\1    pass\n\n\1def close(self, trial, state):\n\1    pass\n\n"
        r"\1def log(self, trial, result, checkpoint):"
    ),
    # What a page leaves to its reader: without it no rank saves anything.
    r"# torch\.save\(\.\.\.\)": 'open(f"{temp_checkpoint_dir}/model.pt", "w").close()',
}
OUTSIDE = {
    r"huggingface\.co|Max retries exceeded|URLError|Temporary failure in name|"
    r"ConnectionError|Error downloading|Name or service|getaddrinfo|CERTIFICATE_VERIFY|"
    r"HTTPError|couldn't connect": "the internet",
    r"cannot import name \S+ from '(?!hpctrain)": "an older version of a package",
    r"No module named 'tensorflow": "TensorFlow",
    r"NameError: name '\w+' is not defined": "what its page defines elsewhere",
    r"s3:/|S3FileSystem|gs://|AWS Error|NoCredentials": "cloud filesystems",
    r"no NVIDIA driver|dummy base class|Torch not compiled with CUDA|"
    r"CUDA (is not|unavailable)|nccl": "GPUs",
    r"No such file or directory: '(/mnt/|/home/|/data)|FileNotFoundError.*(\.json|\.yaml|kaggle)": (
        "files that its author has"
    ),
}
# Errors that the page lists as refused, each with the way out.
REFUSED = (
    "UnavailableNameError",
    "Metrics are numbers, strings",
    "needs model=: a checkpoint holds weights",
    "was not committed: its directory holds no file",
    "is a URL",
    "storage_filesystem",
    "which a .h5 output does not have",
    "a sweep optimizes one metric",
    "UnknownFieldError: TuneConfig has no field",
)
# Of these, exit code 0 hides a wrong result: found by comparing with Ray.
WRONG: dict[str, str] = {}


def identity(source: dict[str, str]) -> str:
    """Return the name of a script or test in the results."""
    return f"{source['version'] or source['repository']}:{source['path']}"


def read(code: Path, source: dict[str, str]) -> str:
    """Return the text of one fetched file, as listed."""
    raw = (code / source["repository"] / source["commit"] / source["path"]).read_bytes()
    if hashlib.sha256(raw).hexdigest() != source["sha256"]:
        raise SystemExit(f"{source['path']} is not the file that sources.json lists. Fetch again.")
    if source["form"] != "blocks":
        return raw.decode()
    return (blocks_of_module if source["path"].endswith(".py") else blocks_of)(raw.decode())


def measure_script(
    text: str, timeout_s: float, extra: str, beside: Mapping[str, str]
) -> dict[str, Any]:
    """Return the state of one script, and the first line of its error; it may import `beside`."""
    if reason := reason_of_script(text):
        return {"state": "not applicable", "reason": reason}
    if missing := absent_packages(text):
        return {"state": "not applicable", "reason": f"needs {', '.join(missing)}"}
    ported = stand_ins.shrink(port(text))
    state, error = attempt(ported, timeout_s, extra, beside)
    if state == "ok":
        return {"state": "unchanged"}
    edited = edit_as_documented(ported)
    if edited != ported:
        state, error = attempt(edited, timeout_s, extra, beside)
        if state == "ok":
            return {"state": "documented edit"}
    if any(words in error for words in REFUSED):
        return {"state": "refused", "error": error[:300]}
    for pattern, reason in OUTSIDE.items():
        if re.search(pattern, error):
            return {"state": "not applicable", "reason": f"needs {reason}", "error": error[:300]}
    return {"state": "undocumented edit", "error": error[:300]}


def edit_as_documented(program: str) -> str:
    """Return a ported program with the edits that the page of Ray Train names."""
    for old, new in DOCUMENTED.items():
        program = re.sub(old, new, program)
    return program


def absent_packages(text: str) -> list[str]:
    """Return the packages that a script imports and that are not installed here."""
    packages = {absent_package(name) for name in Program(text).imports.values()}
    return sorted(package for package in packages if package)


def attempt(
    text: str, timeout_s: float, extra: str, beside: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, str]:
    """Run a program in a folder of its own; return "ok" or "failed", and its error."""
    with tempfile.TemporaryDirectory(prefix="ray-conformance-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        stand_ins.lay_out(folder)
        for module, source in beside.items():
            (folder / f"{module}.py").write_text(stand_ins.shrink(port(source)))
        script = folder / "script.py"
        script.write_text(text.replace("@FOLDER@", name))
        arguments = ["--smoke-test"] if "--smoke-test" in text else []
        done, output = run([sys.executable, str(script), *arguments], folder, timeout_s, extra)
        return ("ok", "") if done == 0 else ("failed", first_error(output, done))


def run(argv: list[str], folder: Path, timeout_s: float, extra: str) -> tuple[int, str]:
    """Run a command in a session of its own, and end the whole session after the time."""
    environment = {
        **os.environ,
        "HOME": str(folder / "home"),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *([extra] if extra else [])]),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        # What programs ask their users to set; offline nothing is sent.
        "WANDB_API_KEY": "0" * 40,
        "WANDB_MODE": "offline",
        # MLflow 3 refuses its own file store otherwise.
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read()


def first_error(output: str, code: int) -> str:
    """Return the line that names the error, without paths that differ between runs."""
    if code == 124:
        return "did not end in time"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [
        index
        for index, line in enumerate(lines)
        if re.match(r"([\w.]+\.)?\w*(Error|Exception|Warning|Interrupt|Exit)\b(:|$)", line)
    ]
    found = " | ".join(lines[named[0] : named[0] + 3]) if named else " | ".join(lines[-3:])
    if named and len(named) > 1:
        last = lines[named[-1]]
        found = found if last in found else f"{found} || {last}"
    # The trials of a sweep have failed before.
    if (trial := re.search(r"^hpctrain: trial_\d+ failed: (.*)", output, re.M)) is not None:
        found = f"{found} || {trial[1]}"
    return re.sub(r"/tmp/ray-conformance-\w+", "DIR", found)


def main() -> None:
    """Measure what the options select, and keep the other results."""
    options = argparse.ArgumentParser(description=__doc__)
    home = Path("~/.cache/hpctrain/ray_conformance").expanduser()
    options.add_argument("--code", type=Path, default=home, help="what fetch.py filled")
    options.add_argument("--results", type=Path, default=RESULTS)
    options.add_argument("--kind", choices=["script", "test"], help="all by default")
    options.add_argument("--only", default="", help="a regular expression for names")
    options.add_argument("--extra", default="", help="folders with more packages")
    options.add_argument("--timeout", type=float, default=180)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--again", action="store_true", help="also what has a result")
    chosen = options.parse_args()
    sys.path[:0] = [one for one in chosen.extra.split(os.pathsep) if one]
    results = json.loads(chosen.results.read_text()) if chosen.results.exists() else {}
    sources = json.loads((HERE / "sources.json").read_text())

    def support(source: dict[str, str]) -> dict[str, str]:
        beside = [
            one
            for one in sources
            if one["kind"] == "support"
            and one["commit"] == source["commit"]
            and "conftest" not in one["path"]
        ]
        return {Path(one["path"]).stem: read(chosen.code, one) for one in beside}

    def examples(source: dict[str, str]) -> dict[str, str]:
        """Return the modules that a script of Ray Tune's may import."""
        folder = "python/ray/tune/examples/"
        if not source["path"].startswith(folder):
            return {}
        return {
            Path(one["path"]).stem: read(chosen.code, one)
            for one in sources
            if one["commit"] == source["commit"] and one["path"].startswith(folder)
        }

    def one(source: dict[str, str]) -> None:
        name = identity(source)
        if source["kind"] == "support" or chosen.kind not in (None, source["kind"]):
            return
        if not re.search(chosen.only, name) or (name in results and not chosen.again):
            return
        text = read(chosen.code, source)
        if source["kind"] == "test":
            stem = Path(source["path"]).stem
            result = run_tests(text, stem, support(source), chosen.timeout, chosen.extra, run)
        else:
            result = measure_script(text, chosen.timeout, chosen.extra, examples(source))
            if result["state"] == "unchanged" and name in WRONG:
                result = {"state": "wrong", "error": WRONG[name]}
        results[name] = {"kind": source["kind"], **result}
        line = {key: value for key, value in result.items() if key != "functions"}
        print(name, json.dumps(line)[:300], flush=True)
        chosen.results.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")

    with ThreadPoolExecutor(chosen.jobs) as pool:
        list(pool.map(one, sources))


if __name__ == "__main__":
    main()
