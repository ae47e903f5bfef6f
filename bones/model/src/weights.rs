//! Where each weight of a described model lies in its images (layout `rows-1`).

use crate::description::Description;
use crate::safetensors::{self, Dtype, HeaderError, Tensor, shown};
use std::collections::HashMap;

/// Elements along K that share one scale.
pub const BLOCK: usize = 32;

/// Why the images do not hold the described model.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// An image that is not safetensors as we read it.
    #[error("weights image {region}: {source}")]
    Header {
        /// Which image, counted from 0.
        region: usize,
        /// What is wrong with it.
        source: HeaderError,
    },
    /// A name in two images.
    #[error("weights image {region}: tensor {name} occurs in an earlier image")]
    Duplicate {
        /// The later image.
        region: usize,
        /// The name.
        name: String,
    },
    /// A tensor that the description asks for.
    #[error("weights: tensor {0} is missing")]
    Missing(String),
    /// A tensor that the description does not ask for.
    #[error("weights: tensor {0} is not part of the described model")]
    Unexpected(String),
    /// Wrong shape or type.
    #[error("weights: tensor {name} is {found}, must be {wanted}")]
    Mismatch {
        /// The tensor.
        name: String,
        /// Type and shape found.
        found: String,
        /// Type and shape needed.
        wanted: String,
    },
    /// A block-quantised matrix whose rows do not divide into blocks.
    #[error("weights: tensor {name} has rows of {cols} elements, quantised rows must be a multiple of {BLOCK}")]
    Ragged {
        /// The matrix.
        name: String,
        /// Its K.
        cols: usize,
    },
}

/// Bytes of an image.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Which image.
    pub region: usize,
    /// First byte within it, aligned to the element.
    pub start: usize,
    /// Number of bytes.
    pub len: usize,
}

/// How a matrix is stored.
#[derive(Clone, Copy, Debug)]
pub enum MatrixData {
    /// 32-bit floats.
    F32(Span),
    /// bfloat16.
    Bf16(Span),
    /// w = scale · q
    Int8 {
        /// Signed bytes.
        q: Span,
        /// 16-bit floats, one a block.
        scale: Span,
    },
    /// w = scale · q + min, or scale · (q − 8) without a minimum
    Int4 {
        /// Two nibbles a byte: element j of a block low, j + 16 high.
        q: Span,
        /// 16-bit floats, one a block.
        scale: Span,
        /// 16-bit floats, one a block.
        min: Option<Span>,
    },
}

/// A matrix [rows, cols], row-major, cols being K.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSpec {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Where and how.
    pub data: MatrixData,
}

/// A vector of 32-bit floats: a norm's weight or a bias.
#[derive(Clone, Copy, Debug)]
pub struct VectorSpec {
    /// Elements.
    pub len: usize,
    /// Where.
    pub span: Span,
}

/// Weights of one decoder layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerSpec {
    /// Norm before attention.
    pub attn_norm: VectorSpec,
    /// q, k and v.
    pub qkv: [MatrixSpec; 3],
    /// Their biases.
    pub qkv_bias: Option<[VectorSpec; 3]>,
    /// Output projection of attention.
    pub o: MatrixSpec,
    /// Norm before the MLP.
    pub mlp_norm: VectorSpec,
    /// Gate of the MLP.
    pub gate: MatrixSpec,
    /// Up projection.
    pub up: MatrixSpec,
    /// Down projection.
    pub down: MatrixSpec,
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
        let mut pool = Pool::read(images)?;
        let bytes = pool.0.values().map(|(_, tensor)| tensor.len as u64).sum();
        let hidden = description.hidden_size;
        let embed = pool.matrix("embed", description.vocab_size, hidden)?;
        let norm = pool.vector("norm.weight", hidden)?;
        let untied = !description.tied_embeddings;
        let head = untied.then(|| pool.matrix("lm_head", description.vocab_size, hidden)).transpose()?;
        let layers = (0..description.layer_count).map(|i| pool.layer(description, i)).collect::<Result<_, _>>()?;
        match pool.0.keys().min() {
            Some(name) => Err(WeightsError::Unexpected(shown(name))),
            None => Ok(Self { embed, norm, head, layers, bytes }),
        }
    }
}

/// Tensors not yet claimed.
struct Pool(HashMap<String, (usize, Tensor)>);

impl Pool {
    fn read(images: &[&[u8]]) -> Result<Self, WeightsError> {
        let mut found = HashMap::new();
        for (region, image) in images.iter().enumerate() {
            let tensors = safetensors::tensors(image).map_err(|source| WeightsError::Header { region, source })?;
            for tensor in tensors {
                let name = tensor.name.clone();
                if found.insert(name.clone(), (region, tensor)).is_some() {
                    return Err(WeightsError::Duplicate { region, name: shown(&name) });
                }
            }
        }
        Ok(Self(found))
    }

    fn layer(&mut self, description: &Description, index: usize) -> Result<LayerSpec, WeightsError> {
        let name = |part: &str| format!("layers.{index}.{part}");
        let (hidden, intermediate) = (description.hidden_size, description.intermediate_size);
        let (query, kv) = (description.query_width(), description.kv_width());
        let qkv_bias = if description.attention_bias {
            Some([
                self.vector(&name("attn.q.bias"), query)?,
                self.vector(&name("attn.k.bias"), kv)?,
                self.vector(&name("attn.v.bias"), kv)?,
            ])
        } else {
            None
        };
        Ok(LayerSpec {
            attn_norm: self.vector(&name("attn_norm.weight"), hidden)?,
            qkv: [
                self.matrix(&name("attn.q"), query, hidden)?,
                self.matrix(&name("attn.k"), kv, hidden)?,
                self.matrix(&name("attn.v"), kv, hidden)?,
            ],
            qkv_bias,
            o: self.matrix(&name("attn.o"), hidden, query)?,
            mlp_norm: self.vector(&name("mlp_norm.weight"), hidden)?,
            gate: self.matrix(&name("mlp.gate"), intermediate, hidden)?,
            up: self.matrix(&name("mlp.up"), intermediate, hidden)?,
            down: self.matrix(&name("mlp.down"), hidden, intermediate)?,
        })
    }

    /// A matrix by whichever of its storage forms is there.
    fn matrix(&mut self, stem: &str, rows: usize, cols: usize) -> Result<MatrixSpec, WeightsError> {
        let name = format!("{stem}.weight");
        let data = if let Some((_, tensor)) = self.0.get(&name) {
            match tensor.dtype {
                Dtype::Bf16 => MatrixData::Bf16(self.take(&name, Dtype::Bf16, &[rows, cols])?),
                _ => MatrixData::F32(self.take(&name, Dtype::F32, &[rows, cols])?),
            }
        } else {
            self.quantised(&name, rows, cols)?
        };
        Ok(MatrixSpec { rows, cols, data })
    }

    fn quantised(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixData, WeightsError> {
        let [q_name, scale_name, min_name] = ["q", "scale", "min"].map(|part| format!("{name}.{part}"));
        let Some((_, q)) = self.0.get(&q_name) else {
            return Err(WeightsError::Missing(name.to_owned()));
        };
        if cols % BLOCK != 0 {
            return Err(WeightsError::Ragged { name: name.to_owned(), cols });
        }
        let blocks = [rows, cols / BLOCK];
        if q.dtype == Dtype::I8 {
            let q = self.take(&q_name, Dtype::I8, &[rows, cols])?;
            return Ok(MatrixData::Int8 { q, scale: self.take(&scale_name, Dtype::F16, &blocks)? });
        }
        let q = self.take(&q_name, Dtype::U8, &[rows, cols / 2])?;
        let scale = self.take(&scale_name, Dtype::F16, &blocks)?;
        let has_min = self.0.contains_key(&min_name);
        let min = has_min.then(|| self.take(&min_name, Dtype::F16, &blocks)).transpose()?;
        Ok(MatrixData::Int4 { q, scale, min })
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<VectorSpec, WeightsError> {
        Ok(VectorSpec { len, span: self.take(name, Dtype::F32, &[len])? })
    }

    fn take(&mut self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<Span, WeightsError> {
        let (region, tensor) = self.0.remove(name).ok_or_else(|| WeightsError::Missing(name.to_owned()))?;
        if tensor.dtype != dtype || tensor.shape != shape {
            return Err(WeightsError::Mismatch {
                name: name.to_owned(),
                found: format!("{:?} {:?}", tensor.dtype, tensor.shape),
                wanted: format!("{dtype:?} {shape:?}"),
            });
        }
        Ok(Span { region, start: tensor.start, len: tensor.len })
    }
}
