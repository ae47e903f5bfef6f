//! A backend of plain loops over f32, which checks what the trait promises and fails when told to.

use super::arithmetic::{act, dot, norm, unpack};
use super::attention;
use super::values::{Cache, Matrix, Operand, Tensor};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tie_bones_model::backend::{Attention, Backend, CacheShape, Heads, Linear, LowRank, SampleRow};
use tie_bones_model::batch::StepPlan;
use tie_bones_model::description::Activation;
use tie_bones_model::exchange::{ExchangeError, Link};
use tie_bones_model::rope::RopeTable;
use tie_bones_model::sampler::{Drawn, RowFault, draw};
use tie_bones_model::weights::{MatrixSpec, VectorSpec};

#[derive(Debug, thiserror::Error)]
pub enum NaiveError {
    #[error("injected")]
    Injected,
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

/// What happens at a certain operation, counted from the backend's first.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Error(usize),
    Panic(usize),
}

pub struct Naive {
    pub images: Arc<Vec<Vec<u8>>>,
    pub link: Link,
    pub fault: Option<Fault>,
    pub operations: Arc<AtomicUsize>,
}

pub struct Step {
    plan: Arc<StepPlan>,
    ropes: Vec<RopeTable>,
}

type Samples = (Vec<SampleRow>, Vec<Result<Drawn, RowFault>>);
type Done = Result<(), NaiveError>;

static IDS: AtomicUsize = AtomicUsize::new(0);

impl Naive {
    fn tick(&self) -> Done {
        let at = self.operations.fetch_add(1, Ordering::Relaxed);
        match self.fault {
            Some(Fault::Error(when)) if when == at => Err(NaiveError::Injected),
            Some(Fault::Panic(when)) => {
                assert!(when != at, "injected");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Backend for Naive {
    type Error = NaiveError;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Rope = RopeTable;
    type Tensor = Tensor;
    type Operand = Operand;
    type Cache = Cache;
    type Step = Step;
    type Samples = Samples;

    fn upload_matrix(&self, spec: &MatrixSpec) -> Result<Matrix, NaiveError> {
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Ok(Matrix { id, rows: spec.rows.len(), cols: spec.cols.len(), values: unpack(spec, &self.images) })
    }

    fn upload_vector(&self, spec: &VectorSpec) -> Result<Vec<f32>, NaiveError> {
        let bytes = &self.images[spec.span.region][spec.span.start..][..spec.len * 4];
        assert_eq!(bytes.len(), spec.span.len);
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
    }

    fn upload_rope(&self, table: &RopeTable) -> Result<RopeTable, NaiveError> {
        Ok(table.clone())
    }

    fn upload_step(&self, plan: Arc<StepPlan>, ropes: &[RopeTable]) -> Result<Step, NaiveError> {
        self.tick()?;
        Ok(Step { plan, ropes: ropes.to_vec() })
    }

    fn upload_samples(&self, rows: Vec<SampleRow>) -> Result<Samples, NaiveError> {
        Ok((rows, Vec::new()))
    }

    fn tensor(&self, width: usize) -> Result<Tensor, NaiveError> {
        Ok(Tensor { width, data: Vec::new() })
    }

    fn resize(&self, tensor: &mut Tensor, rows: usize) -> Done {
        tensor.data = vec![f32::NAN; rows * tensor.width];
        Ok(())
    }

    fn download(&self, tensor: &Tensor) -> Result<Vec<f32>, NaiveError> {
        Ok(tensor.data.clone())
    }

    fn operand(&self) -> Result<Operand, NaiveError> {
        Ok(Operand::default())
    }

    fn download_samples(&self, samples: Samples) -> Result<Vec<Result<Drawn, RowFault>>, NaiveError> {
        Ok(samples.1)
    }

    fn cache(&self, shape: &CacheShape) -> Result<Cache, NaiveError> {
        let slots = shape.block_count * shape.layer_count * shape.kv_heads * shape.block_size_tokens;
        Ok(Cache { shape: *shape, data: vec![0.0; slots * 2 * shape.head_dim] })
    }

    fn block_bytes(&self, cache: &Cache) -> usize {
        cache.block(0).len() * 4
    }

    fn zero_blocks(&self, cache: &mut Cache, ids: &[u32]) -> Done {
        self.tick()?;
        for &id in ids {
            let block = cache.block(id);
            cache.data[block].fill(0.0);
        }
        Ok(())
    }

    fn read_blocks(&self, cache: &Cache, ids: &[u32], out: &mut [u8]) -> Done {
        let floats = ids.iter().flat_map(|&id| &cache.data[cache.block(id)]);
        out.chunks_exact_mut(4).zip(floats).for_each(|(out, x)| out.copy_from_slice(&x.to_le_bytes()));
        Ok(())
    }

    fn write_blocks(&self, cache: &mut Cache, ids: &[u32], bytes: &[u8]) -> Done {
        let size = self.block_bytes(cache);
        for (&id, bytes) in ids.iter().zip(bytes.chunks_exact(size)) {
            let block = cache.block(id);
            let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
            cache.data[block].iter_mut().zip(floats).for_each(|(x, float)| *x = float);
        }
        Ok(())
    }

    fn embed(&self, step: &Step, table: &Matrix, scale: f32, out: &mut Tensor) -> Done {
        self.tick()?;
        let row = |&token: &u32| {
            table.values[token as usize * table.cols..][..table.cols].iter().map(|x| x * scale).collect()
        };
        out.set(step.plan.tokens.iter().map(row));
        Ok(())
    }

    fn prepare_normed(&self, x: &Tensor, weight: &Vec<f32>, eps: f32, readers: &[&Matrix], out: &mut Operand) -> Done {
        self.tick()?;
        out.fill(x.width, x.rows().flat_map(|row| norm(row, weight, eps)).collect(), readers);
        Ok(())
    }

    fn prepare(&self, x: &Tensor, readers: &[&Matrix], out: &mut Operand) -> Done {
        self.tick()?;
        out.fill(x.width, x.data.clone(), readers);
        Ok(())
    }

    fn linear(&self, x: &Operand, parts: &[&Linear<Self>], out: &mut Tensor) -> Done {
        self.tick()?;
        assert_eq!(parts.iter().map(|part| part.weight.rows).sum::<usize>(), out.width);
        out.data = x.x.rows().flat_map(|row| parts.iter().flat_map(move |part| x.product(row, part))).collect();
        Ok(())
    }

    fn linear_add(&self, x: &Operand, part: &Linear<Self>, out: &mut Tensor) -> Done {
        self.tick()?;
        let products = x.x.rows().flat_map(|row| x.product(row, part));
        out.data.iter_mut().zip(products).for_each(|(out, y)| *out += y);
        Ok(())
    }

    fn linear_gated(
        &self,
        x: &Operand,
        gate: &Linear<Self>,
        up: &Linear<Self>,
        activation: Activation,
        out: &mut Tensor,
    ) -> Done {
        self.tick()?;
        let row = |row| x.product(row, gate).into_iter().zip(x.product(row, up)).map(|(g, u)| act(g, activation) * u);
        out.data = x.x.rows().flat_map(row).collect();
        Ok(())
    }

    fn low_rank(
        &self,
        x: &Operand,
        rows: Range<usize>,
        pair: &LowRank<Matrix>,
        out: &mut Tensor,
        column: usize,
    ) -> Done {
        self.tick()?;
        assert!(x.readers.contains(&pair.a.id), "the operand was prepared for this adapter");
        for row in rows {
            let x = &x.x.data[row * x.x.width..][..x.x.width];
            let low: Vec<f32> = pair.a.values.chunks_exact(pair.a.cols).map(|a| dot(x, a)).collect();
            let out = &mut out.data[row * out.width + column..][..pair.b.rows];
            out.iter_mut().zip(pair.b.values.chunks_exact(pair.b.cols)).for_each(|(out, b)| *out += dot(&low, b));
        }
        Ok(())
    }

    fn gated(&self, wide: &Tensor, activation: Activation, out: &mut Tensor) -> Done {
        self.tick()?;
        let width = out.width;
        out.set(wide.rows().map(|row| (0..width).map(|i| act(row[i], activation) * row[width + i]).collect()));
        Ok(())
    }

    fn place(
        &self,
        step: &Step,
        layer: usize,
        (heads, how): (Heads, &Attention),
        norms: Option<(&[Vec<f32>; 2], f32)>,
        qkv: &mut Tensor,
        cache: &mut Cache,
    ) -> Done {
        self.tick()?;
        attention::place((&step.plan, &step.ropes), layer, (heads, how), norms, qkv, cache);
        Ok(())
    }

    fn attend(
        &self,
        step: &Step,
        layer: usize,
        (heads, how): (Heads, &Attention),
        qkv: &Tensor,
        cache: &Cache,
        out: &mut Tensor,
    ) -> Done {
        self.tick()?;
        attention::attend(&step.plan, layer, (heads, how), (qkv, cache), out);
        Ok(())
    }

    fn add(&self, x: &mut Tensor, y: &Tensor) -> Done {
        self.tick()?;
        x.data.iter_mut().zip(&y.data).for_each(|(x, y)| *x += y);
        Ok(())
    }

    fn add_normed(&self, x: &mut Tensor, y: &Tensor, weight: &Vec<f32>, eps: f32) -> Done {
        self.tick()?;
        let normed = y.rows().flat_map(|row| norm(row, weight, eps));
        x.data.iter_mut().zip(normed).for_each(|(x, y)| *x += y);
        Ok(())
    }

    fn softcap(&self, x: &mut Tensor, cap: f32) -> Done {
        self.tick()?;
        x.data.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        Ok(())
    }

    fn gather(&self, x: &Tensor, rows: &[u32], out: &mut Tensor) -> Done {
        self.tick()?;
        out.set(rows.iter().map(|&row| x.data[row as usize * x.width..][..x.width].to_vec()));
        Ok(())
    }

    fn poke(&self, x: &mut Tensor, row: usize, column: usize, value: f32) -> Done {
        let width = x.width;
        x.data[row * width + column] = value;
        Ok(())
    }

    fn sample(&self, logits: &mut Tensor, (rows, drawn): &mut Samples) -> Done {
        self.tick()?;
        let width = logits.width;
        *drawn = rows
            .iter()
            .map(|row| {
                let logits = &mut logits.data[row.logits_row * width..][..width];
                draw(logits, &row.sampling, row.allowed.as_deref(), row.position)
            })
            .collect();
        Ok(())
    }

    fn all_reduce(&self, x: &mut Tensor) -> Done {
        self.tick()?;
        Ok(self.link.all_reduce(&mut x.data)?)
    }

    fn gather_columns(&self, x: &Tensor, out: &mut Tensor) -> Done {
        self.tick()?;
        Ok(self.link.gather_columns(&x.data, x.data.len() / x.width, &mut out.data)?)
    }

    fn send(&self, x: &Tensor) -> Done {
        self.tick()?;
        Ok(self.link.send(&x.data)?)
    }

    fn receive(&self, x: &mut Tensor) -> Done {
        self.tick()?;
        x.data = self.link.receive(<[f32]>::to_vec)?;
        Ok(())
    }
}
