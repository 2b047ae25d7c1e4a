"""Operations on a dataset, with Ray Data's names.

`Description` is a source and the steps after it. Each mixin on top has operations of one kind,
and `Dataset` is all of them:

- ``mapped``: functions of rows and batches (`call`, `row_steps`, `expression`); lazy and streamed
- ``combined``: some of the rows, or several datasets beside and after each other (`derived`,
  `sampled`); lazy and streamed
- ``aggregated``: operations on all rows: sort, groups, aggregates (`whole`, `groups`), by Arrow
- ``consumed``: rows, batches and tensors for the caller
- ``written``: files
"""
