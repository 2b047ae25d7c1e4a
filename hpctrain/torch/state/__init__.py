"""A model's whole state as files of tensors, written and read by all ranks together.

Where to read, from the top down::

    save_state    save.py
                  -> state_dict/flatten.py     all of it as tensors and values by name
                  -> layout/save_plan.py       which rank writes which rows of which tensor
                  -> layout/share_out.py       that plan, made by rank 0 for all ranks
                  -> layout/block_source.py    what of which tensor is in a block of a file
                  -> bulk/state_file_writer.py            blocks to the disk, with digests

    load_state    load.py
                  -> find_index.py             what the directory holds
                  -> state_dict/flatten.py     the live tensors by name
                  -> layout/load_plan.py       which chunk goes where; which rank reads which block
                  -> layout/load_parts.py      what each rank needs of that, from rank 0
                  -> engine/read_blocks.py     blocks from the disk into live tensors
                  -> engine/relay.py           and to the other ranks that want them

    report_state  report.py, then as save_state; with ASYNC from a copy: engine/snapshot.py

A layer uses those below it only: ``engine``, ``layout``, ``state_dict``. ``dcp`` is the same for
`torch.distributed.checkpoint`, whose words these are: a rank holds a shard of a tensor, a file has
a chunk of it. A block is what files are read, written and verified by.
"""
