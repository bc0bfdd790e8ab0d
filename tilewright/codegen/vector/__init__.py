"""From loop nests to MLIR with vectors (level 5): what targets with vector registers share.

`emitter` is the core: it walks the statements of a nest, and emits literally those that no part takes. A part
(`part.Part`) is a class of its own that gets the core; they are listed in `Emitter`, and asked in this order:

- instruction selection: what the target plugs in (tiles, tables), then ``dot2`` and stores of pairs
  (`pair_products`), loops with the note ``dot``, ``dot4`` and ``mulhsi`` (`dot_product`)
- reductions: unrolled sums of vectors (`vector_sums`), sums of rows (`row_sums`), other accumulators (`accumulate`)
- instruction order: loops with lags as one (`software_pipeline`), unrolled vectors in turns (`interleaved`)
- access: loops that copy in place, transposed tiles, interleaved stores; all loads and stores (`access`)

Below them are `builder` (lines, SSA names, scopes, constants), `indices` (where elements lie), `registers` and
`expressions`. What a part does not do as a loop's note asks it tells the core (`Core.refuse`), and `explain` shows it.
"""
