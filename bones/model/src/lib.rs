//! The decoder that Bones executes, described by data.
//!
//! Here: what a model is ([`description`], [`table`], [`adapters`]), what a step is ([`batch`], [`sampling`]), the order
//! of operations ([`decoder`]) and how ranks share them ([`parallel`], [`exchange`], [`engine`]). What an operation does
//! on a device is left to an implementation of [`backend::Backend`]. Nothing here is unsafe.
#![forbid(unsafe_code)]

pub mod adapters;
pub mod backend;
pub mod batch;
mod blocks;
mod crew;
pub mod decoder;
pub mod description;
pub mod engine;
pub mod exchange;
pub mod kinds;
mod layer;
pub mod model;
pub mod packed;
pub mod parallel;
pub mod philox;
pub mod plan;
mod rank;
pub mod rope;
pub mod safetensors;
pub mod sampler;
pub mod sampling;
pub mod table;
pub mod weights;
