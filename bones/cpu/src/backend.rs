//! The operations of the model crate on a CPU. Everything is done when a call returns.

use crate::attention::{self, Heads};
use crate::cache::Pages;
use crate::grid::{every, grid};
use crate::kernels::{Gate, LinearTile, NormRow, WidenRow};
use crate::lines::Lines;
use crate::matrix::{Matrix, Vector};
use crate::pool::Pool;
use crate::regions::Regions;
use crate::simd::Isa;
use std::sync::{Arc, Mutex};
use tie_bones_model::backend::{Backend, CacheShape, KvDtype, SampleRow};
use tie_bones_model::batch::StepPlan;
use tie_bones_model::rope::RopeTable;
use tie_bones_model::sampler::{Drawn, RowFault, draw};
use tie_bones_model::weights::{BLOCK, MatrixSpec, VectorSpec};

/// What a CPU can fail at.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// An allocation was refused.
    #[error("out of memory for {0}")]
    Memory(&'static str),
    /// A thread could not be started.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// Why.
        source: std::io::Error,
    },
}

/// A CPU with some threads and one instruction set.
pub struct Cpu {
    regions: Arc<Regions>,
    pool: Pool,
    isa: Isa,
}

/// Activations, row after row.
pub struct Tensor {
    width: usize,
    rows: usize,
    data: Lines<f32>,
}

/// Keys and values.
pub enum Cache {
    /// As 32-bit floats.
    F32(Pages<f32>),
    /// As bfloat16.
    Bf16(Pages<u16>),
}

/// A step with the turns of its positions.
pub struct Step {
    plan: StepPlan,
    /// `[T, rotary_dim / 2]`
    cosines: Vec<f32>,
    sines: Vec<f32>,
    pairs: usize,
}

/// Rows to sample, then what was drawn.
pub struct Samples {
    rows: Vec<SampleRow>,
    drawn: Vec<Mutex<Option<Result<Drawn, RowFault>>>>,
}

impl Cpu {
    /// A CPU that reads weights from `regions`.
    pub fn new(regions: Arc<Regions>, threads: usize, isa: Isa) -> Result<Self, CpuError> {
        let pool = Pool::new(threads).map_err(|source| CpuError::Threads { threads, source })?;
        Ok(Self { regions, pool, isa })
    }

    /// Rows that one task of a cheap operation takes.
    fn rows_per_task(rows: usize, width: usize) -> usize {
        (16_384 / width.max(1)).clamp(1, rows.max(1))
    }

    /// Runs `task` for each row of a tensor.
    fn each_row(&self, tensor: &mut Tensor, task: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        let (rows, width) = (tensor.rows, tensor.width);
        let cuts = every(rows, Self::rows_per_task(rows, width));
        grid(&self.pool, &mut tensor.data, width, &cuts, width, &|tile| {
            for row in tile.rows() {
                task(row, tile.row(row));
            }
        });
    }
}

impl Tensor {
    fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..(row + 1) * self.width]
    }
}

impl Cache {
    fn block(&self, id: u32) -> &[u8] {
        match self {
            Self::F32(pages) => pages.block(id),
            Self::Bf16(pages) => pages.block(id),
        }
    }

    fn block_mut(&mut self, id: u32) -> &mut [u8] {
        match self {
            Self::F32(pages) => pages.block_mut(id),
            Self::Bf16(pages) => pages.block_mut(id),
        }
    }
}

/// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
pub fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Turns dimension j with j + pairs of each head in a row.
fn turn(row: &mut [f32], head_dim: usize, cosines: &[f32], sines: &[f32]) {
    for head in row.chunks_exact_mut(head_dim) {
        let (low, high) = head.split_at_mut(cosines.len());
        for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

fn store<E: crate::simd::Element>(
    pages: &mut Pages<E>,
    layer: usize,
    plan: &StepPlan,
    shape: &CacheShape,
    (k, v): (&Tensor, &Tensor),
    element: impl Fn(f32) -> E,
) {
    let convert = |x: &[f32]| x.iter().map(|&x| element(x)).collect::<Vec<E>>();
    for row in &plan.rows {
        for token in row.first_token..row.first_token + row.query_len {
            let position = plan.positions[token] as usize;
            let block = plan.tables[row.first_block + position / shape.block_size_tokens];
            let place = (block, position % shape.block_size_tokens);
            let (k, v) = (convert(k.row(token)), convert(v.row(token)));
            let heads = k.chunks_exact(shape.head_dim).zip(v.chunks_exact(shape.head_dim));
            for (head, (k, v)) in heads.enumerate() {
                pages.put((layer, head), place, k, v);
            }
        }
    }
}

impl Backend for Cpu {
    type Error = CpuError;
    type Matrix = Matrix;
    type Vector = Vector;
    type Rope = RopeTable;
    type Tensor = Tensor;
    type Cache = Cache;
    type Step = Step;
    type Samples = Samples;

    fn upload_matrix(&self, spec: &MatrixSpec) -> Result<Matrix, CpuError> {
        Ok(Matrix::new(*spec, Arc::clone(&self.regions)))
    }

    fn upload_vector(&self, spec: &VectorSpec) -> Result<Vector, CpuError> {
        Ok(Vector::new(*spec, Arc::clone(&self.regions)))
    }

    fn upload_rope(&self, table: &RopeTable) -> Result<RopeTable, CpuError> {
        Ok(table.clone())
    }

    fn upload_step(&self, plan: StepPlan, rope: &RopeTable) -> Result<Step, CpuError> {
        // The angle is rounded to f32 as models are trained with; its cosine is exact from there.
        let angles = plan.positions.iter().flat_map(|&p| rope.frequencies.iter().map(move |f| f64::from(p as f32 * f)));
        let factor = f64::from(rope.attention_factor);
        let (cosines, sines) =
            angles.map(|angle| ((angle.cos() * factor) as f32, (angle.sin() * factor) as f32)).unzip();
        Ok(Step { plan, cosines, sines, pairs: rope.frequencies.len() })
    }

    fn upload_samples(&self, rows: Vec<SampleRow>) -> Result<Samples, CpuError> {
        let drawn = rows.iter().map(|_| Mutex::new(None)).collect();
        Ok(Samples { rows, drawn })
    }

    fn tensor(&self, width: usize) -> Result<Tensor, CpuError> {
        Ok(Tensor { width, rows: 0, data: Lines::zeroed(0).ok_or(CpuError::Memory("activations"))? })
    }

    fn resize(&self, tensor: &mut Tensor, rows: usize) -> Result<(), CpuError> {
        let len = rows.checked_mul(tensor.width).ok_or(CpuError::Memory("activations"))?;
        tensor.data.resize(len).ok_or(CpuError::Memory("activations"))?;
        tensor.rows = rows;
        Ok(())
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>, CpuError> {
        Ok(tensor.data.to_vec())
    }

    fn download_samples(&self, samples: Samples) -> Result<Vec<Result<Drawn, RowFault>>, CpuError> {
        let drawn = samples.drawn.into_iter().filter_map(|cell| cell.into_inner().ok().flatten());
        Ok(drawn.collect())
    }

    fn cache(&self, shape: &CacheShape) -> Result<Cache, CpuError> {
        let cache = match shape.dtype {
            KvDtype::F32 => Pages::new(*shape).map(Cache::F32),
            KvDtype::Bf16 => Pages::new(*shape).map(Cache::Bf16),
        };
        cache.ok_or(CpuError::Memory("the KV cache"))
    }

    fn block_bytes(&self, cache: &Cache) -> usize {
        match cache {
            Cache::F32(pages) => pages.block_bytes(),
            Cache::Bf16(pages) => pages.block_bytes(),
        }
    }

    fn zero_blocks(&self, cache: &mut Cache, ids: &[u32]) -> Result<(), CpuError> {
        for &id in ids {
            cache.block_mut(id).fill(0);
        }
        Ok(())
    }

    fn read_blocks(&self, cache: &Cache, ids: &[u32], out: &mut [u8]) -> Result<(), CpuError> {
        let size = self.block_bytes(cache);
        ids.iter().zip(out.chunks_exact_mut(size)).for_each(|(&id, out)| out.copy_from_slice(cache.block(id)));
        Ok(())
    }

    fn write_blocks(&self, cache: &mut Cache, ids: &[u32], bytes: &[u8]) -> Result<(), CpuError> {
        let size = self.block_bytes(cache);
        ids.iter().zip(bytes.chunks_exact(size)).for_each(|(&id, bytes)| cache.block_mut(id).copy_from_slice(bytes));
        Ok(())
    }

    fn embed(&self, step: &Step, table: &Matrix, out: &mut Tensor) -> Result<(), CpuError> {
        let cols = table.cols();
        self.each_row(out, &|token, out| {
            let row = step.plan.tokens[token] as usize;
            self.isa.run(WidenRow { view: table.view(), cols, row, out });
        });
        Ok(())
    }

    fn rms_norm(&self, x: &Tensor, weight: &Vector, eps: f32, out: &mut Tensor) -> Result<(), CpuError> {
        self.each_row(out, &|row, out| {
            self.isa.run(NormRow { x: x.row(row), weight: weight.as_slice(), eps, out });
        });
        Ok(())
    }

    fn linear(&self, x: &Tensor, w: &Matrix, bias: Option<&Vector>, out: &mut Tensor) -> Result<(), CpuError> {
        let (rows, cols) = (w.rows(), w.cols());
        let padded = (cols % BLOCK != 0).then(|| {
            let wide = cols.next_multiple_of(BLOCK);
            let mut data = vec![0.0; x.rows * wide];
            for row in 0..x.rows {
                data[row * wide..][..cols].copy_from_slice(x.row(row));
            }
            data
        });
        let x: &[f32] = padded.as_deref().unwrap_or(&x.data);
        let bias = bias.map(Vector::as_slice);
        // Enough tasks that threads end together, each a whole number of row groups.
        let step = rows.div_ceil(self.pool.threads() * 4).next_multiple_of(4);
        let step = if self.pool.threads() == 1 { rows } else { step };
        let (width, cuts) = (out.width, [0, out.rows]);
        grid(&self.pool, &mut out.data, width, &cuts, step, &|tile| {
            self.isa.run(LinearTile { view: w.view(), rows, cols, x, bias, y: tile });
        });
        Ok(())
    }

    fn rope_and_write_kv(
        &self,
        step: &Step,
        layer: usize,
        [q, k, v]: &mut [Tensor; 3],
        cache: &mut Cache,
    ) -> Result<(), CpuError> {
        let shape = match cache {
            Cache::F32(pages) => pages.shape(),
            Cache::Bf16(pages) => pages.shape(),
        };
        for tensor in [q, &mut *k] {
            self.each_row(tensor, &|token, row| {
                let turns = token * step.pairs..(token + 1) * step.pairs;
                turn(row, shape.head_dim, &step.cosines[turns.clone()], &step.sines[turns]);
            });
        }
        match cache {
            Cache::F32(pages) => store(pages, layer, &step.plan, &shape, (k, v), |x| x),
            Cache::Bf16(pages) => store(pages, layer, &step.plan, &shape, (k, v), to_bf16),
        }
        Ok(())
    }

    fn paged_attention(
        &self,
        step: &Step,
        layer: usize,
        q: &Tensor,
        cache: &Cache,
        out: &mut Tensor,
    ) -> Result<(), CpuError> {
        let heads =
            |shape: CacheShape| Heads { group: q.width / (shape.kv_heads * shape.head_dim), dim: shape.head_dim };
        let run = (&self.pool, self.isa);
        match cache {
            Cache::F32(pages) => {
                attention::attend(run, &step.plan, (pages, layer), heads(pages.shape()), &q.data, &mut out.data);
            }
            Cache::Bf16(pages) => {
                attention::attend(run, &step.plan, (pages, layer), heads(pages.shape()), &q.data, &mut out.data);
            }
        }
        Ok(())
    }

    fn gated_silu(&self, gate: &mut Tensor, up: &Tensor) -> Result<(), CpuError> {
        self.each_row(gate, &|row, gate| self.isa.run(Gate { gate, up: up.row(row) }));
        Ok(())
    }

    fn add(&self, x: &mut Tensor, y: &Tensor) -> Result<(), CpuError> {
        self.each_row(x, &|row, x| x.iter_mut().zip(y.row(row)).for_each(|(x, y)| *x += y));
        Ok(())
    }

    fn gather(&self, x: &Tensor, rows: &[u32], out: &mut Tensor) -> Result<(), CpuError> {
        self.each_row(out, &|row, out| out.copy_from_slice(x.row(rows[row] as usize)));
        Ok(())
    }

    fn poke(&self, x: &mut Tensor, row: usize, column: usize, value: f32) -> Result<(), CpuError> {
        let width = x.width;
        x.data[row * width + column] = value;
        Ok(())
    }

    fn sample(&self, logits: &mut Tensor, samples: &mut Samples) -> Result<(), CpuError> {
        let Samples { rows, drawn } = &*samples;
        let by_row = |logits_row: usize| rows.binary_search_by_key(&logits_row, |r| r.logits_row).ok();
        let (width, cuts) = (logits.width, every(logits.rows, 1));
        grid(&self.pool, &mut logits.data, width, &cuts, width, &|tile| {
            let Some(index) = by_row(tile.rows().start) else { return };
            let SampleRow { logits_row, position, sampling, allowed } = &rows[index];
            let result = draw(tile.row(*logits_row), sampling, allowed.as_deref(), *position);
            if let Ok(mut cell) = drawn[index].lock() {
                *cell = Some(result);
            }
        });
        Ok(())
    }
}
