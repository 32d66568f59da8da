"""Click data with a planted model, whose best possible AUC is known: `write`, `tables`, `Clicks`.

>>> batch = next(tables(1000, seed=0))
>>> batch.num_rows, batch.num_columns
(1000, 42)
"""

from hybridrec.data.synthetic.clicks import BLOCK, Clicks
from hybridrec.data.synthetic.write import METADATA_KEY, Summary, schema, tables, write

__all__ = ["BLOCK", "METADATA_KEY", "Clicks", "Summary", "schema", "tables", "write"]
