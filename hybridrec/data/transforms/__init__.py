"""Per-feature transforms: Arrow array in, Arrow array out. Nulls stay null and lists keep their shape.

Each is a frozen value that prints, compares and round-trips through JSON. Lists of any kind and depth are
opened, the values inside transformed, and the lists closed again; dictionary columns and slices are welcome.
"""

from __future__ import annotations

from hybridrec.data.transforms.base import Transform as Transform
from hybridrec.data.transforms.cross import Cross as Cross
from hybridrec.data.transforms.ids import Hash as Hash
from hybridrec.data.transforms.ids import Modulo as Modulo
from hybridrec.data.transforms.lookup import IsIn as IsIn
from hybridrec.data.transforms.lookup import Vocabulary as Vocabulary
from hybridrec.data.transforms.numbers import Bucketize as Bucketize
from hybridrec.data.transforms.numbers import Clip as Clip
from hybridrec.data.transforms.numbers import Log1p as Log1p
from hybridrec.data.transforms.numbers import Standardize as Standardize
from hybridrec.data.transforms.ops import OPS as OPS
from hybridrec.data.transforms.ops import from_json as from_json
from hybridrec.data.transforms.truncate import Truncate as Truncate
