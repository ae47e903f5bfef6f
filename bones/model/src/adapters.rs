//! Low-rank adapters (`LoRA`): where each of their matrices lies, checked against the model that they change.

use crate::backend::LowRank;
use crate::description::Description;
use crate::packed::{Pool, WeightsError};
use crate::safetensors::shown;
use crate::table::Part;
use crate::weights::{BLOCK, MatrixSpec, PANEL};

/// Most adapters of a model.
pub const MAX_ADAPTERS: usize = 64;
/// Highest rank of a pair.
pub const MAX_RANK: usize = 512;

/// An adapter.
#[derive(Clone, Debug)]
pub struct AdapterSpec {
    /// Its name.
    pub name: String,
    /// For each layer and [`Part`], the pair that is added; none where the matrix stays as it is.
    pub layers: Vec<[Option<LowRank<MatrixSpec>>; 7]>,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// Finds the tensors of adapters, given as name and image; the first image is counted as `first_region`.
pub fn resolve(
    description: &Description,
    adapters: &[(&str, &[u8])],
    first_region: usize,
) -> Result<Vec<AdapterSpec>, WeightsError> {
    if adapters.len() > MAX_ADAPTERS {
        return Err(WeightsError::Adapters(format!("are {}, limit {MAX_ADAPTERS}", adapters.len())));
    }
    let mut found = Vec::<AdapterSpec>::new();
    for (&(name, image), region) in adapters.iter().zip(first_region..) {
        if !is_name(name) {
            let fault = format!("{} must be named [a-z0-9][a-z0-9._-]{{0,63}}", shown(name));
            return Err(WeightsError::Adapters(fault));
        }
        if found.iter().any(|earlier| earlier.name == name) {
            return Err(WeightsError::Adapters(format!("{name} occurs twice")));
        }
        let adapter = adapter(description, name, image, region);
        found.push(adapter.map_err(|source| WeightsError::Adapter { name: name.into(), source: Box::new(source) })?);
    }
    Ok(found)
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 64 && name.starts_with(is_plain) && name.chars().all(|c| is_plain(c) || "._-".contains(c))
}

fn adapter(d: &Description, name: &str, image: &[u8], region: usize) -> Result<AdapterSpec, WeightsError> {
    let mut pool = Pool::read(&[image], region)?;
    let bytes = pool.bytes();
    let mut layers = Vec::new();
    for index in 0..d.layer_count {
        let mut layer = [const { None }; 7];
        for part in Part::ALL {
            layer[part as usize] = pair(&mut pool, d, index, part)?;
        }
        layers.push(layer);
    }
    pool.finish()?;
    Ok(AdapterSpec { name: name.to_owned(), layers, bytes })
}

/// Neither or both of a matrix's pair.
fn pair(
    pool: &mut Pool,
    d: &Description,
    layer: usize,
    part: Part,
) -> Result<Option<LowRank<MatrixSpec>>, WeightsError> {
    let [a, b] = ["lora_a", "lora_b"].map(|side| format!("layers.{layer}.{}.{side}", part.stem()));
    let Some(shape) = pool.shape(&a) else {
        return if pool.shape(&b).is_some() { Err(WeightsError::Missing(a)) } else { Ok(None) };
    };
    // A is stored in panels, so its rank is read off their number; what else is wrong with the shape is found below.
    let rank = shape.first().map_or(0, |panels| panels.saturating_mul(PANEL));
    if !(BLOCK..=MAX_RANK).contains(&rank) || rank % BLOCK != 0 {
        let wanted = format!("of a rank from {BLOCK} to {MAX_RANK} in steps of {BLOCK}");
        return Err(WeightsError::Mismatch { name: a, found: format!("of rank {rank}"), wanted });
    }
    let (rows, cols) = part.shape(d);
    Ok(Some(LowRank { a: pool.plain_matrix(&a, rank, cols)?, b: pool.plain_matrix(&b, rows, rank)? }))
}
