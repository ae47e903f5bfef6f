//! One step's indices, and the turns of its positions.

use std::sync::Arc;
use tie_bones_model::batch::StepPlan;
use tie_bones_model::rope::RopeTable;

/// A step.
pub struct Step {
    /// Its sequences.
    pub plan: Arc<StepPlan>,
    turns: Vec<Turns>,
}

/// Cosines and sines `[T, pairs]` of one rotary table.
struct Turns {
    pairs: usize,
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl Step {
    /// The step with the turns of each rotary table.
    pub fn new(plan: Arc<StepPlan>, ropes: &[RopeTable]) -> Self {
        let turns = ropes.iter().map(|rope| Turns::new(&plan.positions, rope)).collect();
        Self { plan, turns }
    }

    /// Cosines and sines of one token, an element a pair; empty for a layer without rotation.
    pub fn turns(&self, rope: Option<usize>, token: usize) -> (&[f32], &[f32]) {
        let Some(turns) = rope.map(|rope| &self.turns[rope]) else { return (&[], &[]) };
        let at = token * turns.pairs..(token + 1) * turns.pairs;
        (&turns.cosines[at.clone()], &turns.sines[at])
    }
}

impl Turns {
    fn new(positions: &[u32], rope: &RopeTable) -> Self {
        // The angle is rounded to f32 as models are trained with; its cosine is exact from there.
        let angles = positions.iter().flat_map(|&p| rope.frequencies.iter().map(move |f| f64::from(p as f32 * f)));
        let factor = f64::from(rope.attention_factor);
        let (cosines, sines) =
            angles.map(|angle| ((angle.cos() * factor) as f32, (angle.sin() * factor) as f32)).unzip();
        Self { pairs: rope.frequencies.len(), cosines, sines }
    }
}
