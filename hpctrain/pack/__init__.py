"""A Python environment as one file, for the node-local disks of a job's nodes.

The file is an uncompressed tar archive: to unpack it, no node needs a privilege, or a program that
it may lack. Or it is an image of squashfs, which nodes mount (`squashfs`). `contents` finds what
belongs in it, `writer` writes it, `header` reads what a job has to know of it, and `relocate` is
the script in it that makes a copy usable where it lies.
"""
