"""The model of a checkpoint as files of other programs, in blocks of bounded memory.

Where to read, from the top down::

    export_state           export.py
                           -> saved_model.py        which tensors the checkpoint has, in which files
                           -> destination.py        written beside its name, then renamed
                           -> staging.py            there, and removed if its export was killed
    safetensors, torch     safetensors_files.py, torch_file.py
                           -> copy_blocks.py        blocks of the checkpoint into these files
    dcp                    dcp_files.py, dcp_compare.py
                           torch writes, and asks for one part at a time
    all of them            verified_file.py         blocks of the checkpoint, compared with digests
                           -> regions.py            where the bytes of a chunk go in a whole tensor
"""
