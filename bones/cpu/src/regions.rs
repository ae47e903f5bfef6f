//! Images of weights, mapped read-only.

use memmap2::{Advice, Mmap};
use std::fs::File;
use std::io;
use tie_bones_model::weights::Span;

/// Mapped images; unmapped when dropped.
pub struct Regions(Vec<Mmap>);

impl Regions {
    /// Maps every file. The files may be closed afterwards.
    pub fn map(files: &[File]) -> io::Result<Self> {
        files.iter().map(map).collect::<io::Result<_>>().map(Self)
    }

    /// The images.
    pub fn images(&self) -> Vec<&[u8]> {
        self.0.iter().map(|map| &map[..]).collect()
    }

    /// The bytes of a span that the weight table found in these images.
    pub fn bytes(&self, span: Span) -> &[u8] {
        &self.0[span.region][span.start..span.start + span.len]
    }
}

fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only and private to us. That nobody writes or truncates the file meanwhile is kept by the
    // caller of `Model`: it passes sealed memfds, or files of a verified bundle that nothing rewrites in place.
    let map = unsafe { Mmap::map(file)? };
    // Advice is a hint; without it the first pass is slower and nothing else.
    let _ = map.advise(Advice::WillNeed);
    Ok(map)
}
