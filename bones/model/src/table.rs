//! Which weights a described model has, and where each lies in its images.

use crate::description::Description;
use crate::packed::{Pool, WeightsError};
use crate::weights::{MatrixSpec, VectorSpec};

/// The linear layers of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Output of attention.
    O,
    /// Gate of the MLP.
    Gate,
    /// Up projection.
    Up,
    /// Down projection.
    Down,
}

impl Part {
    /// Every one, in the order that `as usize` counts.
    pub const ALL: [Self; 7] = [Self::Q, Self::K, Self::V, Self::O, Self::Gate, Self::Up, Self::Down];

    /// Its name within a layer.
    pub fn stem(self) -> &'static str {
        ["attn.q", "attn.k", "attn.v", "attn.o", "mlp.gate", "mlp.up", "mlp.down"][self as usize]
    }

    /// Outputs and inputs.
    pub fn shape(self, d: &Description) -> (usize, usize) {
        match self {
            Self::Q => (d.query_width(), d.hidden_size),
            Self::K | Self::V => (d.kv_width(), d.hidden_size),
            Self::O => (d.hidden_size, d.query_width()),
            Self::Gate | Self::Up => (d.intermediate_size, d.hidden_size),
            Self::Down => (d.hidden_size, d.intermediate_size),
        }
    }

    fn has_bias(self, d: &Description) -> bool {
        match self {
            Self::Q | Self::K | Self::V => d.qkv_bias,
            Self::O => d.output_bias,
            Self::Gate | Self::Up | Self::Down => d.mlp_bias,
        }
    }
}

/// Weights of a linear layer.
#[derive(Clone, Debug)]
pub struct LinearSpec {
    /// `[outputs, inputs]`
    pub weight: MatrixSpec,
    /// `[outputs]`
    pub bias: Option<VectorSpec>,
}

/// Weights of one decoder layer.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// Norm before attention.
    pub attn_norm: VectorSpec,
    /// Norm before the MLP.
    pub mlp_norm: VectorSpec,
    /// Norms of each head of q and of k.
    pub qk_norms: Option<[VectorSpec; 2]>,
    /// Norms of the outputs of attention and of the MLP.
    pub post_norms: Option<[VectorSpec; 2]>,
    /// By [`Part`].
    pub linears: Vec<LinearSpec>,
}

/// All weights of a model.
#[derive(Clone, Debug)]
pub struct WeightTable {
    /// Token embedding.
    pub embed: MatrixSpec,
    /// Last norm.
    pub norm: VectorSpec,
    /// Output head; absent when the embedding is tied.
    pub head: Option<MatrixSpec>,
    /// Layers in order.
    pub layers: Vec<LayerSpec>,
    /// Bytes of all tensors.
    pub bytes: u64,
}

impl WeightTable {
    /// Finds every tensor of `description` in `images`; none may be missing, doubled or left over.
    pub fn resolve(description: &Description, images: &[&[u8]]) -> Result<Self, WeightsError> {
        let mut pool = Pool::read(images, 0)?;
        let bytes = pool.bytes();
        let (vocab, hidden) = (description.vocab_size, description.hidden_size);
        let embed = pool.matrix("embed.weight", vocab, hidden)?;
        let norm = pool.vector("norm.weight", hidden)?;
        let untied = !description.tied_embeddings;
        let head = untied.then(|| pool.matrix("lm_head.weight", vocab, hidden)).transpose()?;
        let layers =
            (0..description.layer_count).map(|i| layer(&mut pool, description, i)).collect::<Result<_, _>>()?;
        pool.finish()?;
        Ok(Self { embed, norm, head, layers, bytes })
    }
}

fn layer(pool: &mut Pool, d: &Description, index: usize) -> Result<LayerSpec, WeightsError> {
    let name = |part: &str| format!("layers.{index}.{part}");
    let mut vectors = |wanted: bool, names: [&str; 2], len: usize| {
        let mut vector = |part: &str| pool.vector(&name(&format!("{part}.weight")), len);
        wanted.then(|| Ok([vector(names[0])?, vector(names[1])?])).transpose()
    };
    let qk_norms = vectors(d.qk_norm, ["attn.q_norm", "attn.k_norm"], d.head_dim)?;
    let post_norms = vectors(d.post_norms, ["attn_post_norm", "mlp_post_norm"], d.hidden_size)?;
    let linears = Part::ALL.iter().map(|&part| {
        let (rows, cols) = part.shape(d);
        let weight = pool.matrix(&name(&format!("{}.weight", part.stem())), rows, cols)?;
        let bias = part.has_bias(d).then(|| pool.vector(&name(&format!("{}.bias", part.stem())), rows));
        Ok(LinearSpec { weight, bias: bias.transpose()? })
    });
    Ok(LayerSpec {
        linears: linears.collect::<Result<_, WeightsError>>()?,
        attn_norm: pool.vector(&name("attn_norm.weight"), d.hidden_size)?,
        mlp_norm: pool.vector(&name("mlp_norm.weight"), d.hidden_size)?,
        qk_norms,
        post_norms,
    })
}
