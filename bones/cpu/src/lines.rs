//! Buffers that begin on a cache line, so that no vector load straddles two.

use bytemuck::{Pod, Zeroable};
use std::marker::PhantomData;

/// One cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A vector of numbers that begins on a cache line and grows in whole lines.
pub struct Lines<E> {
    memory: Vec<Line>,
    len: usize,
    element: PhantomData<E>,
}

impl<E: Pod> Lines<E> {
    /// `len` zeros; `None` when memory is short.
    pub fn zeroed(len: usize) -> Option<Self> {
        let count = len.checked_mul(size_of::<E>())?.div_ceil(64);
        let memory = bytemuck::allocation::try_zeroed_vec(count).ok()?;
        Some(Self { memory, len, element: PhantomData })
    }

    /// Makes it hold `len` numbers, their values unspecified. Memory is kept when it shrinks.
    pub fn resize(&mut self, len: usize) -> Option<()> {
        let count = len.checked_mul(size_of::<E>())?.div_ceil(64);
        if count > self.memory.len() {
            self.memory = bytemuck::allocation::try_zeroed_vec(count).ok()?;
        }
        self.len = len;
        Some(())
    }
}

impl<E: Pod> std::ops::Deref for Lines<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        &bytemuck::cast_slice(&self.memory)[..self.len]
    }
}

impl<E: Pod> std::ops::DerefMut for Lines<E> {
    fn deref_mut(&mut self) -> &mut [E] {
        &mut bytemuck::cast_slice_mut(&mut self.memory)[..self.len]
    }
}
