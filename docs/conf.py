"""Settings of the documentation; built by ``nox -s docs``."""

import sys
from pathlib import Path

import hpctrain

sys.path.insert(0, str(Path(__file__).parent))
import figures
import plots
import ray_conformance
from command_line import render_verbs
from reason_table import render_reasons
from state_table import render_states
from tested_with import read_results, render
from timeout_table import render_settings, render_timeouts

# What pages include.
generated = Path(__file__).with_name("generated")
generated.mkdir(exist_ok=True)
figures.draw(generated)
plots.draw(generated)
results = ray_conformance.read_results()
(generated / "ray-conformance.txt").write_text(ray_conformance.render(results))
(generated / "ray-tune-conformance.txt").write_text(ray_conformance.render_tune(results))
(generated / "tested-with.txt").write_text(render(read_results()))
(generated / "command-line.txt").write_text(render_verbs())
(generated / "timeout-settings.txt").write_text(render_settings())
(generated / "reasons.txt").write_text(render_reasons())
(generated / "states.txt").write_text(render_states())
(generated / "timeouts.txt").write_text(render_timeouts())

project = "hpctrain"
author = "the hpctrain developers"
copyright = "the hpctrain developers"
version = release = hpctrain.__version__

extensions = ["numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
templates_path = ["_templates"]
exclude_patterns = ["_build"]
# A name in single backticks is a link to it.
default_role = "py:obj"
html_theme = "furo"
html_title = f"hpctrain {version}"

# One page for each name in a package's __all__, wherever the name is defined.
autosummary_generate = True
autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Not installed where the documentation is built: TensorFlow has an environment of its own.
autodoc_mock_imports = ["tensorflow", "tf_keras"]
# docs/_templates/autosummary/class.rst lists the members.
numpydoc_show_class_members = False

# A type variable has no page. Any other class in a public signature needs one: see reference.rst.
nitpick_ignore_regex = [(r"py:.*", r"hpctrain\.(.*\.)?([A-Z]|.*_T)")]
# What a VirtualCluster is made of is its own business.
nitpick_ignore_regex.append((r"py:.*", r"hpctrain\.testing\.slurm\.[a-z_]+\..*"))
# The base of trainers and predictors that checks their arguments.
nitpick_ignore_regex.append((r"py:.*", r"hpctrain\.checks\..*"))
# What trainers show of it, they inherit.
nitpick_ignore_regex.append((r"py:.*", r"hpctrain\.function_run\..*"))
# What several preprocessors, or loggers, have in common is private.
nitpick_ignore_regex.append((r"py:.*", r"hpctrain\.(preprocessors|callbacks)\.\w+\._\w+"))
# Dataset shows what it inherits; the mixins that it is made of have no pages.
nitpick_ignore_regex.append((r"py:.*", r"hpctrain\.data\.operations\..*"))
nitpick_ignore_regex.append((r"py:.*", r"hpctrain\.data\.shard_tensors\..*"))
# What the groups of one run share.
nitpick_ignore_regex.append((r"py:.*", r"hpctrain\.execute\.(node_agents|rank_container)\..*"))
# What a WorkerGroup shows of it, it inherits; so does a Checkpoint.
nitpick_ignore_regex.append((r"py:.*", r"hpctrain\.execute\.rank_group\..*"))
nitpick_ignore_regex.append((r"py:.*", r"hpctrain\.checkpoint_handle\..*"))
nitpick_ignore_regex.append((r"py:.*", r"hpctrain\.execute\.(step_)?fork_servers?\..*"))

# Links to other projects need their inventories from the network: sphinx-build -t online.
# Without that, a broken reference to hpctrain is an error and one to another project is not.
if tags.has("online"):  # noqa: F821  (Sphinx defines it)
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "mpi4py": ("https://mpi4py.readthedocs.io/en/stable", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }
    intersphinx_timeout = 30
else:
    nitpick_ignore_regex.append((r"py:.*", r"(?!hpctrain\.).*"))
