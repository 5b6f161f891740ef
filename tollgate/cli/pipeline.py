"""Name `served_spec` for the training scripts of products, which import it here."""

from tollgate.repository.releases.served_versions import served_spec as served_spec
