//! A described model whose weights have been found.

use crate::adapters::{self, AdapterSpec};
use crate::description::Description;
use crate::packed::WeightsError;
use crate::table::WeightTable;

/// What an engine executes.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its sizes and options.
    pub description: Description,
    /// Where its weights lie.
    pub weights: WeightTable,
    /// Its adapters, in the order that batches count them.
    pub adapters: Vec<AdapterSpec>,
}

impl Model {
    /// Finds every tensor of a model in `images`, and those of its adapters in an image each. Regions are counted
    /// through: the images in order, then the adapters' in theirs.
    pub fn resolve(
        description: Description,
        images: &[&[u8]],
        adapters: &[(&str, &[u8])],
    ) -> Result<Self, WeightsError> {
        let weights = WeightTable::resolve(&description, images)?;
        let adapters = adapters::resolve(&description, adapters, images.len())?;
        Ok(Self { description, weights, adapters })
    }

    /// Bytes of all weights, those of adapters included.
    pub fn bytes(&self) -> u64 {
        self.weights.bytes + self.adapters.iter().map(|adapter| adapter.bytes).sum::<u64>()
    }
}
