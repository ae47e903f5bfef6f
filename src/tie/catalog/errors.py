"""What can be wrong with a model bundle. Every message names the file and the fault; none holds the file's text."""

from tie.contracts.errors import TieError


class CatalogError(TieError):
    """Root of everything that the catalog raises on purpose."""


class BundleRejected(CatalogError):
    """A file of a bundle is missing, altered, hostile or does not say what it must; nothing of it may be used."""

    def __init__(self, file: str, fault: str) -> None:
        super().__init__(f"{file}: {fault}")
        self.file = file
        self.fault = fault
