//! The order of operations of a Llama-family decoder.

use crate::backend::Backend;
use crate::description::{Activation, Description};
use crate::rope::RopeTable;
use crate::weights::{LayerSpec, WeightTable};

/// A decoder whose weights are on a device.
pub struct Decoder<B: Backend> {
    embed: B::Matrix,
    norm: B::Vector,
    head: Option<B::Matrix>,
    layers: Vec<Layer<B>>,
    rope: B::Rope,
    eps: f32,
    activation: Activation,
}

struct Layer<B: Backend> {
    attn_norm: B::Vector,
    qkv: [B::Matrix; 3],
    qkv_bias: Option<[B::Vector; 3]>,
    o: B::Matrix,
    mlp_norm: B::Vector,
    gate: B::Matrix,
    up: B::Matrix,
    down: B::Matrix,
}

/// Activations of a step, kept between steps so that nothing is allocated while serving.
pub struct Workspace<B: Backend> {
    /// The residual stream.
    x: B::Tensor,
    normed: B::Tensor,
    qkv: [B::Tensor; 3],
    attended: B::Tensor,
    projected: B::Tensor,
    gate: B::Tensor,
    up: B::Tensor,
    last: B::Tensor,
    /// Output of the head.
    pub logits: B::Tensor,
}

impl<B: Backend> Workspace<B> {
    /// Empty tensors of the widths that a model needs.
    pub fn new(backend: &B, d: &Description) -> Result<Self, B::Error> {
        let kv = || backend.tensor(d.kv_width());
        Ok(Self {
            x: backend.tensor(d.hidden_size)?,
            normed: backend.tensor(d.hidden_size)?,
            qkv: [backend.tensor(d.query_width())?, kv()?, kv()?],
            attended: backend.tensor(d.query_width())?,
            projected: backend.tensor(d.hidden_size)?,
            gate: backend.tensor(d.intermediate_size)?,
            up: backend.tensor(d.intermediate_size)?,
            last: backend.tensor(d.hidden_size)?,
            logits: backend.tensor(d.vocab_size)?,
        })
    }

    fn resize(&mut self, backend: &B, tokens: usize) -> Result<(), B::Error> {
        let [q, k, v] = &mut self.qkv;
        let (x, normed, attended, projected) = (&mut self.x, &mut self.normed, &mut self.attended, &mut self.projected);
        for tensor in [x, normed, q, k, v, attended, projected, &mut self.gate, &mut self.up] {
            backend.resize(tensor, tokens)?;
        }
        Ok(())
    }
}

impl<B: Backend> Layer<B> {
    fn load(backend: &B, spec: &LayerSpec) -> Result<Self, B::Error> {
        let [q, k, v] = &spec.qkv;
        let qkv_bias = match &spec.qkv_bias {
            None => None,
            Some([q, k, v]) => Some([backend.upload_vector(q)?, backend.upload_vector(k)?, backend.upload_vector(v)?]),
        };
        Ok(Self {
            attn_norm: backend.upload_vector(&spec.attn_norm)?,
            qkv: [backend.upload_matrix(q)?, backend.upload_matrix(k)?, backend.upload_matrix(v)?],
            qkv_bias,
            o: backend.upload_matrix(&spec.o)?,
            mlp_norm: backend.upload_vector(&spec.mlp_norm)?,
            gate: backend.upload_matrix(&spec.gate)?,
            up: backend.upload_matrix(&spec.up)?,
            down: backend.upload_matrix(&spec.down)?,
        })
    }
}

impl<B: Backend> Decoder<B> {
    /// Prepares the weights of a model.
    pub fn load(backend: &B, description: &Description, table: &WeightTable) -> Result<Self, B::Error> {
        Ok(Self {
            embed: backend.upload_matrix(&table.embed)?,
            norm: backend.upload_vector(&table.norm)?,
            head: table.head.as_ref().map(|spec| backend.upload_matrix(spec)).transpose()?,
            layers: table.layers.iter().map(|spec| Layer::load(backend, spec)).collect::<Result<_, _>>()?,
            rope: backend.upload_rope(&RopeTable::new(&description.rope))?,
            eps: description.norm_eps,
            activation: description.activation,
        })
    }

    /// Rotary frequencies on the device.
    pub fn rope(&self) -> &B::Rope {
        &self.rope
    }

    /// Advances the residual stream of `tokens` tokens through all layers, extending the cache.
    pub fn advance(
        &self,
        backend: &B,
        step: &B::Step,
        tokens: usize,
        work: &mut Workspace<B>,
        cache: &mut B::Cache,
    ) -> Result<(), B::Error> {
        work.resize(backend, tokens)?;
        backend.embed(step, &self.embed, &mut work.x)?;
        for (index, layer) in self.layers.iter().enumerate() {
            self.attend(backend, step, (index, layer), work, cache)?;
            self.feed_forward(backend, layer, work)?;
        }
        Ok(())
    }

    /// Logits of the given tokens, into `work.logits`.
    pub fn head(&self, backend: &B, rows: &[u32], work: &mut Workspace<B>) -> Result<(), B::Error> {
        backend.resize(&mut work.last, rows.len())?;
        backend.resize(&mut work.normed, rows.len())?;
        backend.resize(&mut work.logits, rows.len())?;
        backend.gather(&work.x, rows, &mut work.last)?;
        backend.rms_norm(&work.last, &self.norm, self.eps, &mut work.normed)?;
        backend.linear(&work.normed, self.head.as_ref().unwrap_or(&self.embed), None, &mut work.logits)
    }

    fn attend(
        &self,
        backend: &B,
        step: &B::Step,
        (index, layer): (usize, &Layer<B>),
        work: &mut Workspace<B>,
        cache: &mut B::Cache,
    ) -> Result<(), B::Error> {
        backend.rms_norm(&work.x, &layer.attn_norm, self.eps, &mut work.normed)?;
        for (part, out) in work.qkv.iter_mut().enumerate() {
            let bias = layer.qkv_bias.as_ref().map(|biases| &biases[part]);
            backend.linear(&work.normed, &layer.qkv[part], bias, out)?;
        }
        backend.rope_and_write_kv(step, index, &mut work.qkv, cache)?;
        backend.paged_attention(step, index, &work.qkv[0], cache, &mut work.attended)?;
        backend.linear(&work.attended, &layer.o, None, &mut work.projected)?;
        backend.add(&mut work.x, &work.projected)
    }

    fn feed_forward(&self, backend: &B, layer: &Layer<B>, work: &mut Workspace<B>) -> Result<(), B::Error> {
        backend.rms_norm(&work.x, &layer.mlp_norm, self.eps, &mut work.normed)?;
        backend.linear(&work.normed, &layer.gate, None, &mut work.gate)?;
        backend.linear(&work.normed, &layer.up, None, &mut work.up)?;
        match self.activation {
            Activation::Silu => backend.gated_silu(&mut work.gate, &work.up)?,
        }
        backend.linear(&work.gate, &layer.down, None, &mut work.projected)?;
        backend.add(&mut work.x, &work.projected)
    }
}
