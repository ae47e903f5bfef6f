"""Model bundles as data: what they say, what they hold, who signed them. Reads and verifies; never writes."""

from tie.catalog.bundle import Assets, Bundle, WeightFile, open_assets, open_bundle
from tie.catalog.description import BundleDescription, KvDescription, ModelDescription, TokenizerDescription
from tie.catalog.errors import BundleRejected, CatalogError
from tie.catalog.signature import default_trusted_keys_path, load_trusted_keys

__all__ = [
    "Assets",
    "Bundle",
    "BundleDescription",
    "BundleRejected",
    "CatalogError",
    "KvDescription",
    "ModelDescription",
    "TokenizerDescription",
    "WeightFile",
    "default_trusted_keys_path",
    "load_trusted_keys",
    "open_assets",
    "open_bundle",
]
