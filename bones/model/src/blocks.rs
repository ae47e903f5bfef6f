//! Blocks of an engine's cache to and from host memory. A block's bytes are those of every rank, in their order.

use crate::backend::Backend;
use crate::engine::{Engine, EngineError};
use crate::rank::Rank;
use std::collections::HashSet;
use std::sync::Arc;

impl<B: Backend> Engine<B> {
    /// Zeroes blocks.
    pub fn zero_blocks(&mut self, ids: &[i64]) -> Result<(), EngineError<B::Error>> {
        let ids = self.blocks(ids)?;
        self.crew.run(|_| {
            let ids = Arc::clone(&ids);
            move |rank: &mut Rank<B>| rank.zero_blocks(&ids)
        })?;
        Ok(())
    }

    /// The bytes of blocks, one after another.
    pub fn read_blocks(&mut self, ids: &[i64]) -> Result<Vec<u8>, EngineError<B::Error>> {
        let ids = self.blocks(ids)?;
        let mut parts = self.crew.run(|_| {
            let ids = Arc::clone(&ids);
            move |rank: &mut Rank<B>| rank.read_blocks(&ids)
        })?;
        if parts.len() == 1 {
            return Ok(parts.remove(0));
        }
        let mut bytes = Vec::with_capacity(ids.len() * self.block_bytes());
        for block in 0..ids.len() {
            for (part, &size) in parts.iter().zip(&self.block_bytes) {
                bytes.extend_from_slice(&part[block * size..(block + 1) * size]);
            }
        }
        Ok(bytes)
    }

    /// Overwrites blocks with bytes that [`Self::read_blocks`] gave.
    pub fn write_blocks(&mut self, ids: &[i64], bytes: &[u8]) -> Result<(), EngineError<B::Error>> {
        let ids = self.blocks(ids)?;
        let want = ids.len() * self.block_bytes();
        if bytes.len() != want {
            let fault = format!("has {} bytes, {} blocks need {want}", bytes.len(), ids.len());
            return Err(EngineError::Argument { field: "buffer", fault });
        }
        if let Some(written) = self.crew.run_alone(|rank| rank.write_blocks(&ids, bytes)) {
            return written;
        }
        let stride = self.block_bytes();
        let mut start = 0;
        let parts = self.block_bytes.iter().map(|&size| {
            let place = start..start + size;
            start += size;
            bytes.chunks_exact(stride).flat_map(|block| &block[place.clone()]).copied().collect::<Vec<u8>>()
        });
        let mut parts: Vec<Vec<u8>> = parts.collect();
        self.crew.run(|rank| {
            let (ids, part) = (Arc::clone(&ids), std::mem::take(&mut parts[rank]));
            move |rank: &mut Rank<B>| rank.write_blocks(&ids, &part)
        })?;
        Ok(())
    }

    fn blocks(&self, ids: &[i64]) -> Result<Arc<[u32]>, EngineError<B::Error>> {
        let mut seen = HashSet::new();
        let count = self.limits.block_count;
        ids.iter()
            .enumerate()
            .map(|(place, &id)| {
                if usize::try_from(id).is_ok_and(|id| id < count) && seen.insert(id) {
                    return Ok(id as u32);
                }
                let fault = format!("entry {place} is {id}, must be 0 to {} and occur once", count - 1);
                Err(EngineError::Argument { field: "ids", fault })
            })
            .collect()
    }
}
