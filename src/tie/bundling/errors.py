"""What can stop an import besides a bad bundle (`catalog.errors`)."""

from tie.catalog.errors import CatalogError


class SourceRejected(CatalogError):
    """A file that is to be imported is malformed, hostile, or of a kind that we do not import."""

    def __init__(self, file: str, fault: str) -> None:
        super().__init__(f"{file}: {fault}")
        self.file = file
        self.fault = fault


class ImportRefused(CatalogError):
    """The import was asked for wrongly: its destination is in the way, or a key file cannot be used."""
