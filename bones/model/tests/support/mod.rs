//! What the tests of the crate share: random models in the packed layout, a plain backend, and a decoder written down
//! once more without ranks, cache or batches.
#![allow(dead_code, missing_docs, reason = "each test uses a part of it")]

pub mod arithmetic;
pub mod attention;
pub mod naive;
pub mod oracle;
pub mod packing;
pub mod samples;
pub mod steps;
pub mod values;
