"""``python -m hpctrain.cli`` is ``hpctrain``, where its script is not on ``PATH``."""

from hpctrain.cli.main import app

app(prog_name="hpctrain")
