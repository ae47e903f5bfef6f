//! AMX: a matrix unit that multiplies tiles, registers of up to sixteen rows of 64 bytes.
//!
//! Rust has no intrinsics for it, so it is spoken to in assembly. The compiler never uses tile registers, and each block
//! of assembly is complete in itself: what it leaves in them nobody reads. Only the shapes of the registers last, as long as
//! a [`Unit`] does.

mod attention;
mod linear;

use super::LANES;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::cell::Cell;
use std::marker::PhantomData;

/// Most rows of a tile of activations.
pub const ROWS: usize = 16;
/// Most tiles that one sum adds up.
pub const MOST: usize = 8;
/// Bytes between what is multiplied and what is fetched from memory meanwhile.
const AHEAD: usize = 4096;
const UNSHAPED: usize = usize::MAX;
const ROW_BYTES: usize = 4 * LANES;

/// Proof that the processor multiplies tiles of bytes and of bfloat16, and that the system lets this process do it.
#[derive(Clone, Copy)]
pub struct Amx(());

/// This thread's tile registers, which belong to one kernel at a time; they are released in the end.
pub struct Unit {
    shaped: Shaped,
    /// The shapes are those of this thread.
    _thread: PhantomData<*const ()>,
}

/// Tile registers shaped for a number of rows: 0 to 3 hold results, 4 and 5 rows of sixteen and of eight words, 6 and 7
/// sixteen and eight rows of weights.
pub struct Shaped {
    /// `UNSHAPED` before the first use.
    rows: usize,
}

thread_local! {
    static TAKEN: Cell<bool> = const { Cell::new(false) };
}

#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Amx {
    /// Asks the processor, then the system.
    pub fn detect() -> Option<Self> {
        (processor_has_it() && system_permits_it()).then_some(Self(()))
    }

    /// Takes this thread's tile registers; panics where they are taken already.
    pub fn unit(self) -> Unit {
        assert!(!TAKEN.replace(true), "one kernel at a time has a thread's tile registers");
        Unit { shaped: Shaped { rows: UNSHAPED }, _thread: PhantomData }
    }
}

impl Unit {
    /// The registers, shaped for tiles of so many rows.
    #[inline(always)]
    pub fn of_rows(&mut self, rows: usize) -> &mut Shaped {
        if self.shaped.rows != rows {
            self.shaped.shape(rows);
        }
        &mut self.shaped
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // SAFETY: the instruction exists where a `Unit` does; it touches tile registers alone.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        TAKEN.set(false);
    }
}

// Older compilers call it unsafe.
#[allow(unused_unsafe)]
fn processor_has_it() -> bool {
    const TILE_BF16_INT8: u32 = 1 << 24 | 1 << 22 | 1 << 25;
    // SAFETY: every x86-64 processor has cpuid.
    let leaves = unsafe { __cpuid(0) }.eax;
    // SAFETY: as above; the leaf exists.
    leaves >= 7 && unsafe { __cpuid_count(7, 0) }.edx & TILE_BF16_INT8 == TILE_BF16_INT8
}

/// Linux saves tile registers only for processes that ask.
#[cfg(target_os = "linux")]
fn system_permits_it() -> bool {
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    const ARCH_PRCTL: isize = 158;
    let failed: isize;
    // SAFETY: the call takes two numbers and touches no memory; it enables a feature of the process or fails.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => failed, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") TILE_DATA,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    failed == 0
}

#[cfg(not(target_os = "linux"))]
fn system_permits_it() -> bool {
    false
}

impl Shaped {
    fn shape(&mut self, rows: usize) {
        assert!((1..=ROWS).contains(&rows), "a tile has 1 to {ROWS} rows");
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(ROW_BYTES as u16);
        config.row_bytes[5] = ROW_BYTES as u16 / 2;
        config.rows[..6].fill(rows as u8);
        (config.rows[6], config.rows[7]) = (16, 8);
        // SAFETY: the instruction exists where a `Shaped` does; it reads the 64 bytes of a configuration that is valid.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(readonly, nostack, preserves_flags)) };
        self.rows = rows;
    }
}
