//! The operations of the model crate on a CPU. Everything is done when a call returns.

use crate::attention::{Work, attend};
use crate::cache::Pages;
use crate::grid::{every, grid};
use crate::kernels::{AddNormed, Finish, Gate, SoftCap, TurnHeads, embed};
use crate::matrix::{Matrix, Vector};
use crate::operand::Operand;
use crate::pool::Pool;
use crate::regions::Regions;
use crate::simd::Isa;
use crate::step::Step;
use crate::tensor::Tensor;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tie_bones_model::backend::{Attention, Backend, CacheShape, Heads, Linear, LowRank, SampleRow};
use tie_bones_model::batch::StepPlan;
use tie_bones_model::description::Activation;
use tie_bones_model::exchange::{ExchangeError, Link};
use tie_bones_model::rope::RopeTable;
use tie_bones_model::sampler::{Drawn, RowFault, draw};
use tie_bones_model::weights::{MatrixSpec, VectorSpec};

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
    /// Another rank ended.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

/// Some threads with one instruction set: one rank.
pub struct Cpu {
    regions: Arc<Regions>,
    pub(crate) pool: Pool,
    pub(crate) isa: Isa,
    link: Link,
}

/// Rows to sample, then what was drawn.
pub struct Samples {
    rows: Vec<SampleRow>,
    drawn: Vec<Mutex<Option<Result<Drawn, RowFault>>>>,
}

impl Cpu {
    /// A rank that reads weights from `regions` and meets the others over `link`.
    pub fn new(regions: Arc<Regions>, threads: usize, isa: Isa, link: Link) -> Result<Self, CpuError> {
        let pool = Pool::new(threads).map_err(|source| CpuError::Threads { threads, source })?;
        Ok(Self { regions, pool, isa, link })
    }
}

/// Writes the keys and values of every token into the cache.
fn store(pages: &mut Pages, layer: usize, plan: &StepPlan, heads: Heads, qkv: &Tensor) {
    let (dim, size) = (heads.dim, pages.shape().block_size_tokens);
    for row in &plan.rows {
        for token in row.first_token..row.first_token + row.query_len {
            let position = plan.positions[token] as usize;
            let block = plan.tables[row.first_block + position / size];
            let (k, v) = qkv.row(token)[heads.query * dim..].split_at(heads.kv * dim);
            for (head, (k, v)) in k.chunks_exact(dim).zip(v.chunks_exact(dim)).enumerate() {
                pages.put((layer, head), (block, position % size), k, v);
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
    type Operand = Operand;
    type Cache = Pages;
    type Step = Step;
    type Samples = Samples;

    fn upload_matrix(&self, spec: &MatrixSpec) -> Result<Matrix, CpuError> {
        Ok(Matrix::new(spec.clone(), Arc::clone(&self.regions)))
    }

    fn upload_vector(&self, spec: &VectorSpec) -> Result<Vector, CpuError> {
        Ok(Vector::new(*spec, Arc::clone(&self.regions)))
    }

    fn upload_rope(&self, table: &RopeTable) -> Result<RopeTable, CpuError> {
        Ok(table.clone())
    }

    fn upload_step(&self, plan: Arc<StepPlan>, ropes: &[RopeTable]) -> Result<Step, CpuError> {
        Ok(Step::new(plan, ropes))
    }

    fn upload_samples(&self, rows: Vec<SampleRow>) -> Result<Samples, CpuError> {
        let drawn = rows.iter().map(|_| Mutex::new(None)).collect();
        Ok(Samples { rows, drawn })
    }

    fn tensor(&self, width: usize) -> Result<Tensor, CpuError> {
        Tensor::new(width)
    }

    fn resize(&self, tensor: &mut Tensor, rows: usize) -> Result<(), CpuError> {
        tensor.resize(rows)
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>, CpuError> {
        Ok(tensor.data().to_vec())
    }

    fn operand(&self) -> Result<Operand, CpuError> {
        Operand::new().ok_or(CpuError::Memory("activations"))
    }

    fn download_samples(&self, samples: Samples) -> Result<Vec<Result<Drawn, RowFault>>, CpuError> {
        let drawn = samples.drawn.into_iter().filter_map(|cell| cell.into_inner().ok().flatten());
        Ok(drawn.collect())
    }

    fn cache(&self, shape: &CacheShape) -> Result<Pages, CpuError> {
        Pages::new(*shape).ok_or(CpuError::Memory("the KV cache"))
    }

    fn block_bytes(&self, cache: &Pages) -> usize {
        cache.block_bytes()
    }

    fn zero_blocks(&self, cache: &mut Pages, ids: &[u32]) -> Result<(), CpuError> {
        for &id in ids {
            cache.block_mut(id).fill(0);
        }
        Ok(())
    }

    fn read_blocks(&self, cache: &Pages, ids: &[u32], out: &mut [u8]) -> Result<(), CpuError> {
        let size = cache.block_bytes();
        ids.iter().zip(out.chunks_exact_mut(size)).for_each(|(&id, out)| out.copy_from_slice(cache.block(id)));
        Ok(())
    }

    fn write_blocks(&self, cache: &mut Pages, ids: &[u32], bytes: &[u8]) -> Result<(), CpuError> {
        let size = cache.block_bytes();
        ids.iter().zip(bytes.chunks_exact(size)).for_each(|(&id, bytes)| cache.block_mut(id).copy_from_slice(bytes));
        Ok(())
    }

    fn embed(&self, step: &Step, table: &Matrix, scale: f32, out: &mut Tensor) -> Result<(), CpuError> {
        out.each_row(&self.pool, &|token, out| embed(&table.view(), step.plan.tokens[token] as usize, scale, out));
        Ok(())
    }

    fn prepare_normed(
        &self,
        x: &Tensor,
        weight: &Vector,
        eps: f32,
        readers: &[&Matrix],
        out: &mut Operand,
    ) -> Result<(), CpuError> {
        self.fill((x.data(), x.width()), Some((weight.as_slice(), eps)), readers, out)
    }

    fn prepare(&self, x: &Tensor, readers: &[&Matrix], out: &mut Operand) -> Result<(), CpuError> {
        self.fill((x.data(), x.width()), None, readers, out)
    }

    fn linear(&self, x: &Operand, parts: &[&Linear<Self>], out: &mut Tensor) -> Result<(), CpuError> {
        out.resize(x.rows())?;
        self.side_by_side(x, parts, out);
        Ok(())
    }

    fn linear_add(&self, x: &Operand, part: &Linear<Self>, out: &mut Tensor) -> Result<(), CpuError> {
        self.together(x, &[part], Finish::Add, out);
        Ok(())
    }

    fn linear_gated(
        &self,
        x: &Operand,
        gate: &Linear<Self>,
        up: &Linear<Self>,
        activation: Activation,
        out: &mut Tensor,
    ) -> Result<(), CpuError> {
        out.resize(x.rows())?;
        self.together(x, &[gate, up], Finish::Gate(activation), out);
        Ok(())
    }

    fn low_rank(
        &self,
        x: &Operand,
        rows: Range<usize>,
        pair: &LowRank<Matrix>,
        out: &mut Tensor,
        column: usize,
    ) -> Result<(), CpuError> {
        Cpu::low_rank(self, x, rows, pair, out, column)
    }

    fn gated(&self, wide: &Tensor, activation: Activation, out: &mut Tensor) -> Result<(), CpuError> {
        let width = out.width();
        out.each_row(&self.pool, &|row, out| {
            let (gate, up) = wide.row(row).split_at(width);
            self.isa.run(Gate { activation, gate, up, out });
        });
        Ok(())
    }

    fn place(
        &self,
        step: &Step,
        layer: usize,
        (heads, attention): (Heads, &Attention),
        norms: Option<(&[Vector; 2], f32)>,
        qkv: &mut Tensor,
        cache: &mut Pages,
    ) -> Result<(), CpuError> {
        let dim = heads.dim;
        if norms.is_some() || attention.rope.is_some() {
            qkv.each_row(&self.pool, &|token, row| {
                let (q, rest) = row.split_at_mut(heads.query * dim);
                let turns = step.turns(attention.rope, token);
                for (part, heads) in [q, &mut rest[..heads.kv * dim]].into_iter().enumerate() {
                    let norm = norms.map(|(weights, eps)| (weights[part].as_slice(), eps));
                    self.isa.run(TurnHeads { heads, dim, norm, turns });
                }
            });
        }
        store(cache, layer, &step.plan, heads, qkv);
        Ok(())
    }

    fn attend(
        &self,
        step: &Step,
        layer: usize,
        (heads, attention): (Heads, &Attention),
        qkv: &Tensor,
        cache: &Pages,
        out: &mut Tensor,
    ) -> Result<(), CpuError> {
        let work = Work {
            pool: &self.pool,
            isa: self.isa,
            plan: &step.plan,
            cache: (cache, layer),
            heads,
            attention,
            qkv: (qkv.data(), qkv.width()),
        };
        attend(&work, out.data_mut());
        Ok(())
    }

    fn add(&self, x: &mut Tensor, y: &Tensor) -> Result<(), CpuError> {
        x.each_row(&self.pool, &|row, x| x.iter_mut().zip(y.row(row)).for_each(|(x, y)| *x += y));
        Ok(())
    }

    fn add_normed(&self, x: &mut Tensor, y: &Tensor, weight: &Vector, eps: f32) -> Result<(), CpuError> {
        x.each_row(&self.pool, &|row, x| self.isa.run(AddNormed { x, y: y.row(row), weight: weight.as_slice(), eps }));
        Ok(())
    }

    fn softcap(&self, x: &mut Tensor, cap: f32) -> Result<(), CpuError> {
        x.each_row(&self.pool, &|_, x| self.isa.run(SoftCap { x, cap }));
        Ok(())
    }

    fn gather(&self, x: &Tensor, rows: &[u32], out: &mut Tensor) -> Result<(), CpuError> {
        out.each_row(&self.pool, &|row, out| out.copy_from_slice(x.row(rows[row] as usize)));
        Ok(())
    }

    fn poke(&self, x: &mut Tensor, row: usize, column: usize, value: f32) -> Result<(), CpuError> {
        let width = x.width();
        x.data_mut()[row * width + column] = value;
        Ok(())
    }

    fn sample(&self, logits: &mut Tensor, samples: &mut Samples) -> Result<(), CpuError> {
        let Samples { rows, drawn } = &*samples;
        let by_row = |logits_row: usize| rows.binary_search_by_key(&logits_row, |r| r.logits_row).ok();
        let (width, cuts) = (logits.width(), every(logits.rows(), 1));
        grid(&self.pool, logits.data_mut(), width, [&cuts, &[0, width]], &|tile| {
            let Some(index) = by_row(tile.rows().start) else { return };
            let SampleRow { logits_row, position, sampling, allowed } = &rows[index];
            let result = draw(tile.row(*logits_row), sampling, allowed.as_deref(), *position);
            if let Ok(mut cell) = drawn[index].lock() {
                *cell = Some(result);
            }
        });
        Ok(())
    }

    fn all_reduce(&self, x: &mut Tensor) -> Result<(), CpuError> {
        Ok(self.link.all_reduce(x.data_mut())?)
    }

    fn gather_columns(&self, x: &Tensor, out: &mut Tensor) -> Result<(), CpuError> {
        Ok(self.link.gather_columns(x.data(), x.rows(), out.data_mut())?)
    }

    fn send(&self, x: &Tensor) -> Result<(), CpuError> {
        Ok(self.link.send(x.data())?)
    }

    fn receive(&self, x: &mut Tensor) -> Result<(), CpuError> {
        self.link.receive(|data| {
            x.resize(data.len() / x.width())?;
            x.data_mut().copy_from_slice(data);
            Ok(())
        })?
    }
}
