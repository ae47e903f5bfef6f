//! The tensors of safetensors images by name, claimed one by one in the shapes that the packed layout gives them.

use crate::safetensors::{self, Dtype, HeaderError, Tensor, shown};
use crate::weights::{BLOCK, MatrixData, MatrixSpec, PANEL, Span, VectorSpec};
use std::collections::HashMap;

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
    /// Adapters that cannot be counted or told apart.
    #[error("adapters: {0}")]
    Adapters(String),
    /// An adapter that does not fit the model.
    #[error("adapter {name}: {source}")]
    Adapter {
        /// Its name.
        name: String,
        /// What is wrong.
        source: Box<WeightsError>,
    },
}

/// Tensors not yet claimed.
pub(crate) struct Pool(HashMap<String, (usize, Tensor)>);

impl Pool {
    /// The tensors of images, the first of which is counted as `first_region`.
    pub fn read(images: &[&[u8]], first_region: usize) -> Result<Self, WeightsError> {
        let mut found = HashMap::new();
        for (image, region) in images.iter().zip(first_region..) {
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

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|(_, tensor)| tensor.len as u64).sum()
    }

    /// Shape of a tensor that is not yet claimed.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.0.get(name).map(|(_, tensor)| tensor.shape.as_slice())
    }

    /// Ends the claims: nothing may be left.
    pub fn finish(self) -> Result<(), WeightsError> {
        match self.0.keys().min() {
            Some(name) => Err(WeightsError::Unexpected(shown(name))),
            None => Ok(()),
        }
    }

    /// A matrix by whichever of its storage forms is there.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixSpec, WeightsError> {
        if self.0.contains_key(name) {
            return self.plain_matrix(name, rows, cols);
        }
        let data = self.quantised(name, rows, cols)?;
        Ok(MatrixSpec::whole(rows, cols, data))
    }

    /// A matrix in f32 or bf16.
    pub fn plain_matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixSpec, WeightsError> {
        let panels = rows.div_ceil(PANEL);
        let is_bf16 = self.0.get(name).is_some_and(|(_, tensor)| tensor.dtype == Dtype::Bf16);
        let data = if is_bf16 {
            MatrixData::Bf16(self.take(name, Dtype::Bf16, &[panels, cols.div_ceil(2), PANEL, 2])?)
        } else {
            MatrixData::F32(self.take(name, Dtype::F32, &[panels, cols, PANEL])?)
        };
        Ok(MatrixSpec::whole(rows, cols, data))
    }

    /// int4 has a dimension more than int8.
    fn quantised(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixData, WeightsError> {
        let [q_name, scale_name, min_name] = ["q", "scale", "min"].map(|part| format!("{name}.{part}"));
        let Some(shape) = self.shape(&q_name) else {
            return Err(WeightsError::Missing(name.to_owned()));
        };
        if cols % BLOCK != 0 {
            return Err(WeightsError::Ragged { name: name.to_owned(), cols });
        }
        let (panels, blocks) = (rows.div_ceil(PANEL), cols / BLOCK);
        let scales = [panels, blocks, PANEL];
        if shape.len() == 4 {
            let q = self.take(&q_name, Dtype::U8, &[panels, cols / 4, PANEL, 4])?;
            return Ok(MatrixData::Int8 { q, scale: self.take(&scale_name, Dtype::F16, &scales)? });
        }
        let q = self.take(&q_name, Dtype::U8, &[panels, blocks, 4, PANEL, 4])?;
        let scale = self.take(&scale_name, Dtype::F16, &scales)?;
        let has_min = self.0.contains_key(&min_name);
        let min = has_min.then(|| self.take(&min_name, Dtype::F16, &scales)).transpose()?;
        Ok(MatrixData::Int4 { q, scale, min })
    }

    /// A vector in f32.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<VectorSpec, WeightsError> {
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
