"""What can be done with a dataset, in Ray Data's names.

`Description` is a source and the steps after it. Each mixin on top has operations of one kind,
and `Dataset` is all of them:

- ``mapped``: rows and batches on their way (`call`, `row_steps`, `expression`); lazy and streamed
- ``combined``: some of the rows, or several datasets beside and after each other (`derived`,
  `sampled`); lazy and streamed
- ``aggregated``: what needs all rows: sort, groups, aggregates (`whole`, `groups`); Arrow computes
- ``consumed``: rows, batches and tensors for the caller
- ``written``: files
"""
