//! One decoder layer: attention and a gated MLP around the residual stream.
//!
//! The short path adds a projection where it is computed. The long one, for rows with adapters, for sums over tensor
//! ranks and for norms of outputs, keeps the projection apart first; both give the same bits to a row that needs
//! neither ([`crate::backend`]).

use crate::backend::{Attention, Backend, Heads, Linear, LowRank};
use crate::batch::StepPlan;
use crate::decoder::Workspace;
use crate::description::Activation;
use crate::model::Model;
use crate::parallel::Shard;
use crate::rope;
use crate::table::{LinearSpec, Part};
use crate::weights::VectorSpec;

/// What is the same for every layer of a step.
pub(crate) struct Pass<'a, B: Backend> {
    pub backend: &'a B,
    pub step: &'a B::Step,
    pub plan: &'a StepPlan,
    pub activation: Activation,
    pub eps: f32,
    /// Whether outputs are sums over tensor ranks.
    pub is_split: bool,
}

/// A rank's part of a layer.
pub(crate) struct Layer<B: Backend> {
    attention: Attention,
    heads: Heads,
    attn_norm: B::Vector,
    mlp_norm: B::Vector,
    qk_norms: Option<[B::Vector; 2]>,
    post_norms: Option<[B::Vector; 2]>,
    /// By [`Part`].
    linears: Vec<Linear<B>>,
    /// Outputs by [`Part`].
    widths: Vec<usize>,
    /// By adapter and [`Part`].
    adapters: Vec<[Option<LowRank<B::Matrix>>; 7]>,
}

impl<B: Backend> Layer<B> {
    /// Uploads the rank's part of layer `index`.
    pub fn load(backend: &B, model: &Model, shard: &Shard, index: usize) -> Result<Self, B::Error> {
        let spec = &model.weights.layers[index];
        let pair = |specs: &Option<[VectorSpec; 2]>| {
            specs.as_ref().map(|[a, b]| Ok([backend.upload_vector(a)?, backend.upload_vector(b)?])).transpose()
        };
        let specs: Vec<LinearSpec> = Part::ALL.map(|part| shard.linear(part, &spec.linears[part as usize])).into();
        let adapters = model.adapters.iter().map(|adapter| {
            let mut pairs = [const { None }; 7];
            for part in Part::ALL {
                let Some(spec) = &adapter.layers[index][part as usize] else { continue };
                let LowRank { a, b } = shard.low_rank(part, spec);
                pairs[part as usize] = Some(LowRank { a: backend.upload_matrix(&a)?, b: backend.upload_matrix(&b)? });
            }
            Ok(pairs)
        });
        Ok(Self {
            attention: rope::attention(&model.description, index),
            heads: shard.heads,
            attn_norm: backend.upload_vector(&spec.attn_norm)?,
            mlp_norm: backend.upload_vector(&spec.mlp_norm)?,
            qk_norms: pair(&spec.qk_norms)?,
            post_norms: pair(&spec.post_norms)?,
            linears: specs.iter().map(|spec| linear(backend, spec)).collect::<Result<_, _>>()?,
            widths: specs.iter().map(|spec| spec.weight.rows.len()).collect(),
            adapters: adapters.collect::<Result<_, _>>()?,
        })
    }

    /// `x += attention(norm(x))`; `index` counts the rank's layers.
    pub fn attend(
        &self,
        pass: &Pass<B>,
        index: usize,
        work: &mut Workspace<B>,
        cache: &mut B::Cache,
    ) -> Result<(), B::Error> {
        const QKV: [Part; 3] = [Part::Q, Part::K, Part::V];
        let Pass { backend, step, eps, .. } = *pass;
        let how = (self.heads, &self.attention);
        let norms = self.qk_norms.as_ref().map(|norms| (norms, eps));
        backend.prepare_normed(&work.x, &self.attn_norm, eps, &self.readers(pass, &QKV), &mut work.operand)?;
        backend.linear(&work.operand, &QKV.map(|part| self.linear(part)), &mut work.qkv)?;
        self.adapt(pass, &QKV, &work.operand, &mut work.qkv)?;
        backend.place(step, index, how, norms, &mut work.qkv, cache)?;
        backend.attend(step, index, how, &work.qkv, cache, &mut work.attended)?;
        backend.prepare(&work.attended, &self.readers(pass, &[Part::O]), &mut work.operand)?;
        self.merge(pass, Part::O, self.post_norms.as_ref().map(|norms| &norms[0]), work)
    }

    /// `x += mlp(norm(x))`
    pub fn feed_forward(&self, pass: &Pass<B>, work: &mut Workspace<B>) -> Result<(), B::Error> {
        const INNER: [Part; 2] = [Part::Gate, Part::Up];
        let Pass { backend, eps, activation, .. } = *pass;
        let [gate, up] = INNER.map(|part| self.linear(part));
        backend.prepare_normed(&work.x, &self.mlp_norm, eps, &self.readers(pass, &INNER), &mut work.operand)?;
        if self.is_adapted(pass, &INNER) {
            backend.linear(&work.operand, &[gate, up], &mut work.wide)?;
            self.adapt(pass, &INNER, &work.operand, &mut work.wide)?;
            backend.gated(&work.wide, activation, &mut work.gated)?;
        } else {
            backend.linear_gated(&work.operand, gate, up, activation, &mut work.gated)?;
        }
        backend.prepare(&work.gated, &self.readers(pass, &[Part::Down]), &mut work.operand)?;
        self.merge(pass, Part::Down, self.post_norms.as_ref().map(|norms| &norms[1]), work)
    }

    /// Adds a projection of the operand to the residual stream.
    fn merge(
        &self,
        pass: &Pass<B>,
        part: Part,
        norm: Option<&B::Vector>,
        work: &mut Workspace<B>,
    ) -> Result<(), B::Error> {
        let backend = pass.backend;
        if norm.is_none() && !pass.is_split && !self.is_adapted(pass, &[part]) {
            return backend.linear_add(&work.operand, self.linear(part), &mut work.x);
        }
        backend.linear(&work.operand, &[self.linear(part)], &mut work.projected)?;
        self.adapt(pass, &[part], &work.operand, &mut work.projected)?;
        if pass.is_split {
            backend.all_reduce(&mut work.projected)?;
        }
        match norm {
            None => backend.add(&mut work.x, &work.projected),
            Some(weight) => backend.add_normed(&mut work.x, &work.projected, weight, pass.eps),
        }
    }

    /// Adds what adapters contribute to the parts that `out` holds side by side.
    fn adapt(&self, pass: &Pass<B>, parts: &[Part], operand: &B::Operand, out: &mut B::Tensor) -> Result<(), B::Error> {
        for segment in &pass.plan.segments {
            let mut column = 0;
            for &part in parts {
                if let Some(pair) = &self.adapters[segment.adapter][part as usize] {
                    pass.backend.low_rank(operand, segment.tokens.clone(), pair, out, column)?;
                }
                column += self.widths[part as usize];
            }
        }
        Ok(())
    }

    fn linear(&self, part: Part) -> &Linear<B> {
        &self.linears[part as usize]
    }

    fn is_adapted(&self, pass: &Pass<B>, parts: &[Part]) -> bool {
        self.pairs(pass, parts).next().is_some()
    }

    /// Pairs that this step adds to some of the parts.
    fn pairs<'a>(&'a self, pass: &'a Pass<B>, parts: &'a [Part]) -> impl Iterator<Item = &'a LowRank<B::Matrix>> {
        let used = pass.plan.segments.iter().map(|segment| &self.adapters[segment.adapter]);
        used.flat_map(|pairs| parts.iter().filter_map(|&part| pairs[part as usize].as_ref()))
    }

    /// Matrices that read the operand of some parts in this step.
    fn readers<'a>(&'a self, pass: &'a Pass<B>, parts: &'a [Part]) -> Vec<&'a B::Matrix> {
        let own = parts.iter().map(|&part| &self.linear(part).weight);
        own.chain(self.pairs(pass, parts).map(|pair| &pair.a)).collect()
    }
}

fn linear<B: Backend>(backend: &B, spec: &LinearSpec) -> Result<Linear<B>, B::Error> {
    let bias = spec.bias.as_ref().map(|bias| backend.upload_vector(bias)).transpose()?;
    Ok(Linear { weight: backend.upload_matrix(&spec.weight)?, bias })
}
