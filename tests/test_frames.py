"""What is shown of a traceback."""

from __future__ import annotations

import sysconfig

from hpctrain.frames import fold_library_frames, innermost_user_frame

MINE = '  File "/home/ann/train.py", line 4, in train\n    model.to("cuda")\n'
LIBRARY = sysconfig.get_paths()["purelib"]


def frames(count: int) -> str:
    return "".join(
        f'  File "{LIBRARY}/torch/x.py", line {n}, in f{n}\n    f{n + 1}()\n    ^^^^\n'
        for n in range(count)
    )


def test_several_frames_of_packages_in_a_row_are_shown_by_their_last() -> None:
    last = f'  File "{LIBRARY}/torch/x.py", line 3, in f3\n    f4()\n    ^^^^\n'
    text = f"Traceback (most recent call last):\n{MINE}{frames(4)}{MINE}{frames(2)}ValueError: no"
    assert fold_library_frames(text) == (
        "Traceback (most recent call last):\n"
        f"{MINE}  [3 frames of installed packages]\n{last}{MINE}{frames(2)}ValueError: no"
    )


def test_a_training_function_of_an_installed_package_keeps_its_frames() -> None:
    text = f"Traceback (most recent call last):\n{frames(5)}{MINE}ValueError: no"
    assert fold_library_frames(text) == text


def test_the_innermost_frame_of_the_user_is_that_of_no_package_and_not_ours() -> None:
    import hpctrain

    ours = f'  File "{hpctrain.__path__[0]}/worker/train.py", line 127 in run_training'
    library = f'  File "{LIBRARY}/torch/distributed.py", line 9 in all_reduce'
    mine = '  File "/home/ann/my train.py", line 4 in step (inner)'
    stack = "\n".join(["Thread 0x1 (most recent call first):", library, mine, ours])
    assert innermost_user_frame(stack) == "my train.py:4, in step (inner)"
    assert innermost_user_frame(f"{library}\n{ours}") == ""
    assert innermost_user_frame("") == ""
