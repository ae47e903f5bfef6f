//! The order of operations of a decoder, as one rank performs its share of it.

use crate::backend::{Backend, Linear};
use crate::batch::StepPlan;
use crate::description::Activation;
use crate::exchange::Place;
use crate::layer::{Layer, Pass};
use crate::model::Model;
use crate::parallel::Shard;
use crate::rope;

/// A rank's share of a decoder, its weights on a device.
pub struct Decoder<B: Backend> {
    place: Place,
    /// The first stage's, where `head` does not double as it.
    embed: Option<B::Matrix>,
    layers: Vec<Layer<B>>,
    /// The last stage's: norm and head.
    end: Option<(B::Vector, Linear<B>)>,
    ropes: Vec<B::Rope>,
    embedding_scale: f32,
    logit_softcap: Option<f32>,
    activation: Activation,
    eps: f32,
}

/// Activations of a step, kept between steps so that nothing is allocated while serving.
pub struct Workspace<B: Backend> {
    /// The residual stream.
    pub(crate) x: B::Tensor,
    /// What the next linear layers read.
    pub(crate) operand: B::Operand,
    pub(crate) qkv: B::Tensor,
    pub(crate) attended: B::Tensor,
    /// Output of attention or MLP, where it is not added at once.
    pub(crate) projected: B::Tensor,
    /// Gate and up, where they are not combined at once.
    pub(crate) wide: B::Tensor,
    pub(crate) gated: B::Tensor,
    /// The residual stream of the tokens whose logits are wanted.
    last: B::Tensor,
    /// The rank's part of their logits, where ranks share the vocabulary.
    part: B::Tensor,
    logits: B::Tensor,
}

impl<B: Backend> Workspace<B> {
    /// Empty tensors of the widths that a rank needs.
    pub fn new(backend: &B, model: &Model, shard: &Shard) -> Result<Self, B::Error> {
        let (hidden, heads) = (model.description.hidden_size, shard.heads);
        Ok(Self {
            x: backend.tensor(hidden)?,
            operand: backend.operand()?,
            qkv: backend.tensor((heads.query + 2 * heads.kv) * heads.dim)?,
            attended: backend.tensor(heads.query * heads.dim)?,
            projected: backend.tensor(hidden)?,
            wide: backend.tensor(2 * shard.columns.len())?,
            gated: backend.tensor(shard.columns.len())?,
            last: backend.tensor(hidden)?,
            part: backend.tensor(shard.vocab.len())?,
            logits: backend.tensor(model.description.vocab_size)?,
        })
    }
}

impl<B: Backend> Workspace<B> {
    /// What the last [`Decoder::head`] left on the sampling rank.
    pub fn logits(&mut self) -> &mut B::Tensor {
        &mut self.logits
    }
}

impl<B: Backend> Decoder<B> {
    /// Uploads a rank's share of a model.
    pub fn load(backend: &B, model: &Model, shard: &Shard) -> Result<Self, B::Error> {
        let (d, table, place) = (&model.description, &model.weights, shard.place);
        let head = table.head.as_ref().unwrap_or(&table.embed);
        let end = place.is_last().then(|| {
            let weight = backend.upload_matrix(&head.part(shard.vocab.clone(), 0..d.hidden_size))?;
            Ok((backend.upload_vector(&table.norm)?, Linear { weight, bias: None }))
        });
        let head_embeds = d.tied_embeddings && place.is_last() && place.tensor_ranks == 1;
        let embed = (place.is_first() && !head_embeds).then(|| backend.upload_matrix(&table.embed));
        Ok(Self {
            place,
            embed: embed.transpose()?,
            layers: shard.layers.clone().map(|i| Layer::load(backend, model, shard, i)).collect::<Result<_, _>>()?,
            end: end.transpose()?,
            ropes: rope::tables(d).iter().map(|table| backend.upload_rope(table)).collect::<Result<_, _>>()?,
            embedding_scale: d.embedding_scale,
            logit_softcap: d.logit_softcap,
            activation: d.activation,
            eps: d.norm_eps,
        })
    }

    /// Rotary frequencies on the device.
    pub fn ropes(&self) -> &[B::Rope] {
        &self.ropes
    }

    /// Advances the residual stream of a step's tokens through the rank's layers, extending the cache.
    pub fn advance(
        &self,
        backend: &B,
        (step, plan): (&B::Step, &StepPlan),
        work: &mut Workspace<B>,
        cache: &mut B::Cache,
    ) -> Result<(), B::Error> {
        let is_split = self.place.tensor_ranks > 1;
        let pass = Pass { backend, step, plan, activation: self.activation, eps: self.eps, is_split };
        for tensor in [&mut work.x, &mut work.attended, &mut work.gated] {
            backend.resize(tensor, plan.tokens.len())?;
        }
        if self.place.is_first() {
            let head = self.end.as_ref().map(|(_, head)| &head.weight);
            let table = self.embed.as_ref().or(head).expect("load gave the first stage one or the other");
            backend.embed(step, table, self.embedding_scale, &mut work.x)?;
        } else {
            backend.receive(&mut work.x)?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            layer.attend(&pass, index, work, cache)?;
            layer.feed_forward(&pass, work)?;
        }
        if self.place.is_last() { Ok(()) } else { backend.send(&work.x) }
    }

    /// Logits of the given tokens, which the sampling rank gets; nothing to do before the last stage.
    pub fn head(&self, backend: &B, rows: &[u32], work: &mut Workspace<B>) -> Result<(), B::Error> {
        let Some((norm, head)) = &self.end else { return Ok(()) };
        let is_split = self.place.tensor_ranks > 1;
        backend.resize(&mut work.last, rows.len())?;
        backend.gather(&work.x, rows, &mut work.last)?;
        backend.prepare_normed(&work.last, norm, self.eps, &[&head.weight], &mut work.operand)?;
        let part = if is_split { &mut work.part } else { &mut work.logits };
        backend.linear(&work.operand, &[head], part)?;
        if let Some(cap) = self.logit_softcap {
            backend.softcap(part, cap)?;
        }
        if is_split {
            if self.place.is_sampler() {
                backend.resize(&mut work.logits, rows.len())?;
            }
            backend.gather_columns(&work.part, &mut work.logits)?;
        }
        Ok(())
    }
}
