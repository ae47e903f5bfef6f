//! The decoder that Bones executes, described by data.
//!
//! Here: what a model is ([`description`], [`weights`]), what a step is ([`batch`], [`sampling`]) and the order of
//! operations ([`decoder`], [`engine`]). What an operation does on a device is left to an implementation of
//! [`backend::Backend`]. Nothing here is unsafe.
#![forbid(unsafe_code)]

pub mod backend;
pub mod batch;
pub mod decoder;
pub mod description;
pub mod engine;
pub mod philox;
pub mod rope;
pub mod safetensors;
pub mod sampler;
pub mod sampling;
pub mod weights;
